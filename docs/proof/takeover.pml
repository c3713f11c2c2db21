/* Two Machines of one cluster that ask for one node name, with one key, or by one TPM: at most one is certified. Each
   has a MachineAttestation of its own, so no compare-and-swap sees both. It is what controllers/csr/issuer.py and
   kube/elector.py do; docs/decisions.md says why. Two replicas: each is paused anywhere, crashes anywhere, and takes the
   Lease over from the other at any step, so no clock is trusted; caches are as old as they like. A replica evaluates
   both requests at once. What one record holds in time is checked in ledger.pml.
   A macro M_... leaves out one check: docs/proof/runs.yaml lists them, and the claim that then fails. */
#define TERMS 4     /* takeovers, the first one included */
#define CRASHES 2

bit made[2];                        /* a machine's record is in the ledger */
byte holder = 2, term;              /* the Lease: whose it is (2: nobody's), leaseTransitions */

bit serving[2];                     /* a replica believes that it serves the cluster */
byte life[2];                       /* which process it is: a crash begins another one */
byte mine[2];                       /* the term that it began with */
bit seen[4];                        /* its cache: machine m's record, at 2*replica + m */
bit reserved[2];                    /* its memory: a record with the name, key or TPM is being written */

byte crashes;
bit published[2];                   /* ghost: a machine's certificate is out */

/* The elector of a replica, and its watch. */
proctype Elector(byte me) {
  do
  :: atomic { !serving[me] && term < TERMS -> holder = me; term++; mine[me] = term }
#ifndef M_NO_LIST
     atomic { seen[2*me] = made[0]; seen[2*me + 1] = made[1] }           /* a list that begins after the claim */
#endif
     serving[me] = 1
  :: atomic { serving[me] && holder != me && term < TERMS -> holder = me; term++ }      /* unaware of the other */
  :: atomic { serving[me] && crashes < CRASHES -> crashes++; life[me]++; serving[me] = 0; reserved[me] = 0;
              seen[2*me] = 0; seen[2*me + 1] = 0 }
  :: atomic { serving[me] -> seen[2*me] = made[0] }                      /* a watch event arrives */
  :: atomic { serving[me] -> seen[2*me + 1] = made[1] }
  od }

/* Is the Lease still ours, and was it so ever since we began? Abandons the request otherwise: it is tried again. */
inline confirm() {
  atomic { if
#ifdef M_NO_TERM
           :: life[me] == born && holder == me -> skip
#else
           :: life[me] == born && holder == me && term == mine[me] -> skip
#endif
           :: else -> goto again
           fi } }

/* One machine's request at one replica. */
proctype Request(byte me; byte m) {
  byte born;
  do
  :: atomic { serving[me] -> born = life[me];
       if
       :: seen[2*me + m] ->                                              /* on record: published again */
#ifndef M_NO_SECOND_LOOK
          if :: reserved[me] || seen[2*me + 1 - m] -> goto again :: else fi;
#endif
          goto recorded
       :: else ->                                                        /* NODE_NAME_TAKEN, KEY_REUSED, ... */
#ifdef M_NO_RESERVATION
          if :: seen[2*me + 1 - m] -> goto again :: else fi
#else
          if :: reserved[me] || seen[2*me + 1 - m] -> goto again :: else -> reserved[me] = 1 fi
#endif
       fi }
#ifdef M_CONFIRM_FIRST
     confirm();
#endif
     atomic { if                                                         /* the record is created, however late */
              :: made[m] ->                                              /* 409: read anew, evaluated again */
                 if :: life[me] == born -> seen[2*me + m] = 1; reserved[me] = 0 :: else fi; goto again
              :: else -> made[m] = 1
              fi }
     atomic { if                                                         /* the answer arrives */
              :: life[me] == born -> seen[2*me + m] = 1; reserved[me] = 0
              :: else -> goto again
              fi }
recorded: skip;
#if !defined(M_NO_CONFIRMATION) && !defined(M_CONFIRM_FIRST)
     confirm();
#endif
     atomic { assert(!published[1 - m]);    /* claim: one machine for one name, key or TPM */
              assert(made[m]);              /* claim: what is published is recorded */
#ifdef REACHABLE
              assert(term != TERMS || crashes != CRASHES); /* claim: nothing is published after takeovers and crashes */
#endif
              published[m] = 1 }
again: atomic { born = 0 }
  od }

init { atomic {
  run Elector(0); run Elector(1);
  run Request(0, 0); run Request(0, 1); run Request(1, 0); run Request(1, 1) } }
