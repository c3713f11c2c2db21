/* One machine's ledger (the MachineAttestation): two replicas that both believe to lead, caches as old as they like,
   crashes anywhere, an operator who resets. It is what controllers/csr/issuer.py, controllers/csr/checks.py and
   model/attestation_object.py do; docs/identity-rules.md has the rules. Every write is a compare-and-swap on
   resourceVersion. join.pv takes as given what is checked here; takeover.pml has two Machines and the Lease.
   A macro M_... leaves out one check: docs/proof/runs.yaml lists them, and the claim that then fails. */
#define REQS 6
#define KEYS 4   /* 1..3 */
#define UIDS 4   /* 1..3 */
#define MAXRV 3

typedef Obj { byte rv; byte gen; byte pin; byte serial[KEYS]; byte first[KEYS]; bit retired[KEYS]; bit recent };
Obj ledger; Obj cache[2];
byte serials;                       /* handed out */
byte pub[KEYS];                     /* ghost: serial published for a key */
byte pubU[UIDS];                    /* ghost: key certified for a first request, before a reset or since */
byte pinOf[4];                      /* ghost: TPM certified in a generation */
byte perRv[MAXRV + 2];              /* ghost: serial published by the write on this resourceVersion */
byte key[REQS], uid[REQS], tpm[REQS]; bit renewal[REQS];

inline snapshot(to, from) {
  to.rv = from.rv; to.gen = from.gen; to.pin = from.pin; to.recent = from.recent;
  to.serial[1] = from.serial[1]; to.serial[2] = from.serial[2]; to.serial[3] = from.serial[3];
  to.first[1] = from.first[1]; to.first[2] = from.first[2]; to.first[3] = from.first[3];
  to.retired[1] = from.retired[1]; to.retired[2] = from.retired[2]; to.retired[3] = from.retired[3]; }

inline publish(PK, PU, PT, PS, PG) {
  assert(pub[PK] == 0 || pub[PK] == PS);          /* claim: one certificate for one key */
  pub[PK] = PS;
  assert(pubU[PU] == 0 || pubU[PU] == PK);        /* claim: one key for one answered challenge */
  pubU[PU] = PK;
  assert(pinOf[PG] == 0 || pinOf[PG] == PT);      /* claim: one TPM in a generation */
  pinOf[PG] = PT }

/* Is a key on record, or retired, that answered the first request of r, and is not r's? */
#define answered(K) ((cache[me].serial[K] || cache[me].retired[K]) && cache[me].first[K] == uid[r] && k != K)

proctype Replica(byte me) {
  byte r, s, base, k, u, t, g;
  do
  :: atomic { snapshot(cache[me], ledger) }                              /* a watch event arrives */
  :: atomic { select(r : 0 .. 5); k = key[r]; }
     if                                                                   /* judge */
#ifndef M_NO_PIN
     :: cache[me].pin != 0 && cache[me].pin != tpm[r] -> skip             /* ENDORSEMENT_KEY_CHANGED */
#endif
     :: else ->
        if
#ifndef M_NO_LOOKUP
        :: cache[me].serial[k] != 0 -> atomic {
             u = cache[me].first[k]; t = cache[me].pin; s = cache[me].serial[k]; g = cache[me].gen; publish(k, u, t, s, g) }
#endif
#ifndef M_NO_RETIRED
        :: cache[me].retired[k] -> skip                                   /* KEY_REUSED */
#endif
#ifndef M_NO_UID_RULE
        :: answered(1) || answered(2) || answered(3) -> skip              /* REPLAYED */
#endif
#ifndef M_NO_PAUSE
        :: !renewal[r] && cache[me].recent -> skip                        /* MACHINE_ALREADY_BOUND */
#endif
        :: else ->
           atomic { serials < 4 -> serials++; s = serials; base = cache[me].rv }    /* signed, in memory only */
#ifdef M_PUBLISH_FIRST
           atomic { u = uid[r]; t = tpm[r]; g = cache[me].gen; publish(k, u, t, s, g) }
#endif
           if :: true -> skip :: true -> goto crashed fi;
           atomic {
             if
#ifdef M_NO_CAS
             :: ledger.rv < MAXRV ->
#else
             :: ledger.rv == base && ledger.rv < MAXRV ->
#endif
                assert(renewal[r] || !ledger.recent);           /* claim: one new key in ten minutes outside renewal */
                snapshot(ledger, cache[me]);                              /* what is written is what was judged, and the entry */
                ledger.rv = base + 1; ledger.pin = tpm[r]; ledger.serial[k] = s; ledger.first[k] = uid[r]; ledger.recent = 1;
                assert(perRv[base] == 0 || perRv[base] == s);   /* claim: one write for one resourceVersion */
                perRv[base] = s;
                snapshot(cache[me], ledger)
             :: else -> s = 0                                             /* 409: judge again */
             fi }
           if
           :: s == 0 -> skip
           :: s != 0 ->
              if :: true -> atomic { u = uid[r]; t = tpm[r]; g = cache[me].gen; publish(k, u, t, s, g) } :: true -> skip fi   /* or crash here */
           fi
        fi
     fi;
crashed: atomic { s = 0; base = 0; u = 0; t = 0; g = 0; r = 0; k = 0 }
  od }

proctype Operator() {                                                     /* nodeattest machines reset, on record */
  atomic { ledger.gen < 2 && ledger.rv < MAXRV && ledger.pin != 0 ->
    if :: ledger.serial[1] -> ledger.retired[1] = 1 :: else fi;
    if :: ledger.serial[2] -> ledger.retired[2] = 1 :: else fi;
    if :: ledger.serial[3] -> ledger.retired[3] = 1 :: else fi;
    ledger.serial[1] = 0; ledger.serial[2] = 0; ledger.serial[3] = 0;
#ifdef M_FORGET_UIDS
    ledger.first[1] = 0; ledger.first[2] = 0; ledger.first[3] = 0;        /* else each retired key keeps what it answered */
#endif
    ledger.pin = 0; ledger.recent = 0; ledger.gen++; ledger.rv++ } }

proctype Clock() { atomic { ledger.recent -> ledger.recent = 0 } }        /* ten minutes pass, once */

init { atomic {
  key[0] = 1; uid[0] = 1; tpm[0] = 1;                    /* honest join */
  key[1] = 1; uid[1] = 1; tpm[1] = 1;                    /* a copy of its second request */
  key[2] = 2; uid[2] = 1; tpm[2] = 1;                    /* the same challenge, another key */
  key[3] = 3; uid[3] = 2; tpm[3] = 2;                    /* another genuine TPM (first use) */
  key[4] = 2; uid[4] = 3; tpm[4] = 1; renewal[4] = 1;    /* honest renewal */
  key[5] = 1; uid[5] = 2; tpm[5] = 1;                    /* the first key, answered anew */
  run Replica(0); run Replica(1); run Operator(); run Clock() } }
