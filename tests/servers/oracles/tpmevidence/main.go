// Command tpmevidence judges evidence of the provider tpm by docs/wire-format.md and Google's TPM libraries alone.
//
// Standard input is a join as in tests/vectors/v1: facts, and one request or both. The output is the challenge for the
// first request, or what both prove. The exit code is 1 if the evidence is denied.
//
// Out of scope: canonical JSON, RSA attestation keys, trust in endorsement keys, times, PCR values and event logs.
package main

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"log"
	"os"
	"strconv"

	"github.com/google/go-tpm/tpm2"
	certificates "k8s.io/api/certificates/v1"
)

// evidenceBlock is the second PEM block of each request, and a field of the binding.
const evidenceBlock = "tpm/v1"

type join struct {
	Requests []certificates.CertificateSigningRequest
	Facts    struct {
		Cluster struct {
			UID  string
			Pins []string
		}
		Machine       struct{ UID string }
		Settings      struct{ PCRs struct{ Selection []int } }
		ChallengeKeys []string
	}
}

// request is a CertificateSigningRequest with its envelope's content.
type request struct {
	certificates.CertificateSigningRequest
	csr      *x509.CertificateRequest
	evidence struct {
		EKPub, AKPub, EKCert  base64url
		First                 struct{ Name, UID string }
		MAC, Quote, Signature base64url
		PCRs                  []base64url
	}
}

type base64url []byte

func (b *base64url) UnmarshalText(text []byte) (err error) {
	*b, err = base64.RawURLEncoding.Strict().DecodeString(string(text))
	return err
}

func (b base64url) MarshalText() ([]byte, error) {
	return base64.RawURLEncoding.AppendEncode(nil, b), nil
}

func main() {
	log.SetFlags(0)
	var j join
	check(json.NewDecoder(os.Stdin).Decode(&j))
	first := parseRequest(j.Requests[0])
	k := parseKeys(first.evidence.EKPub, first.evidence.AKPub, first.evidence.EKCert)
	nonce, secret := j.derive("nonce", first, k), j.derive("secret", first, k)
	if len(j.Requests) == 1 {
		check(json.NewEncoder(os.Stdout).Encode(j.challenge(first, k, nonce, secret)))
	} else {
		check(json.NewEncoder(os.Stdout).Encode(j.verify(first, parseRequest(j.Requests[1]), k, nonce, secret)))
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func require(isTrue bool, rule string) {
	if !isTrue {
		log.Fatal("broken rule: " + rule)
	}
}

func parseRequest(object certificates.CertificateSigningRequest) *request {
	const attestation = "KUBELET AUTHENTICATOR ATTESTATION "
	r, content, rest := &request{CertificateSigningRequest: object}, [3][]byte{}, object.Spec.Request
	for i, label := range []string{"CERTIFICATE REQUEST", attestation + "PROVIDER", attestation + "DATA"} {
		block, after := pem.Decode(rest)
		require(block != nil && block.Type == label, "the envelope holds three blocks")
		content[i], rest = block.Bytes, after
	}
	var err error
	r.csr, err = x509.ParseCertificateRequest(content[0])
	check(err)
	check(r.csr.CheckSignature())
	require(string(content[1]) == evidenceBlock, "the evidence is of version 1 of tpm")
	check(json.Unmarshal(content[2], &r.evidence))
	return r
}

// lp is the function of the same name in the wire format.
func lp(fields ...[]byte) (joined []byte) {
	for _, field := range fields {
		joined = append(binary.BigEndian.AppendUint32(joined, uint32(len(field))), field...)
	}
	return joined
}

func label(purpose string) []byte { return []byte("nodeattest/v1/" + purpose) }

func hash(parts ...[]byte) []byte {
	digest := sha256.Sum256(bytes.Join(parts, nil))
	return digest[:]
}

func fingerprint(spki []byte) string { return "sha256:" + hex.EncodeToString(hash(spki)) }

// derive returns N (purpose "nonce") or S ("secret").
func (j *join) derive(purpose string, first *request, k *keys) []byte {
	master, err := hex.DecodeString(j.Facts.ChallengeKeys[0])
	check(err)
	created := strconv.FormatInt(first.CreationTimestamp.Unix(), 10)
	context := lp([]byte(j.Facts.Cluster.UID), []byte(first.UID), hash(first.Spec.Request), []byte(first.Spec.Username),
		k.akName, hash(k.ekSPKI), []byte(j.Facts.Machine.UID), []byte(created))
	info := append(lp(label(purpose)), context...)
	derived, err := hkdf.Key(sha256.New, master, nil, string(info), sha256.Size)
	check(err)
	return derived
}

func (j *join) binding(r *request) []byte {
	return hash(lp(label("binding"), []byte(evidenceBlock), []byte(j.Facts.Cluster.Pins[0]), []byte(r.Spec.SignerName),
		hash(r.csr.Raw)))
}

func (j *join) selection() []int {
	if selection := j.Facts.Settings.PCRs.Selection; selection != nil {
		return selection
	}
	return []int{0, 7}
}

// challenge returns the annotation's value.
func (j *join) challenge(first *request, k *keys, nonce, secret []byte) any {
	key, err := tpm2.ImportEncapsulationKey(k.ek)
	check(err)
	blob, encrypted, err := tpm2.CreateCredential(rand.Reader, key, k.akName, secret)
	check(err)
	return map[string]any{
		"blob": base64url(blob), "secret": base64url(encrypted), "n": base64url(nonce), "v": 1,
		"uid": first.UID, "spki": fingerprint(first.csr.RawSubjectPublicKeyInfo),
		"pcrs": map[string]any{"bank": "sha256", "select": j.selection()},
	}
}

// verify returns what the controller records of the TPM.
func (j *join) verify(first, second *request, k *keys, nonce, secret []byte) any {
	e := &second.evidence
	require(e.First.Name == first.Name && e.First.UID == string(first.UID), "the second request names the first")
	require(second.Spec.SignerName == first.Spec.SignerName && second.Spec.Username == first.Spec.Username &&
		bytes.Equal(second.csr.Raw, first.csr.Raw),
		"both requests have one signer, user and PKCS#10")
	uid, binding := []byte(first.UID), j.binding(second)
	mac := hmac.New(sha256.New, secret)
	mac.Write(lp(label("proof"), uid, hash(first.csr.Raw), binding))
	require(hmac.Equal(mac.Sum(nil), e.MAC), "the MAC proves that the TPM opened the credential")
	extra := hash(lp(label("quote"), nonce, uid, binding))
	return k.verifyQuote(e.Quote, e.Signature, e.PCRs, j.selection(), extra)
}
