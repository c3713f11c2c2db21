package main

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/hex"

	"github.com/google/go-attestation/attest"
	"github.com/google/go-tpm/tpm2"
)

// keys are the public keys of a TPM.
type keys struct {
	ek     *tpm2.TPMTPublic
	ekSPKI []byte
	akPub  []byte
	akName []byte
}

func parseKeys(ekPub, akPub, ekCert []byte) *keys {
	ek, err := tpm2.Unmarshal[tpm2.TPMTPublic](ekPub)
	check(err)
	a := ek.ObjectAttributes
	require(a.FixedTPM && a.FixedParent && a.SensitiveDataOrigin && a.AdminWithPolicy && a.Restricted && a.Decrypt &&
		!a.SignEncrypt, "the endorsement key is a restricted decryption key")
	public, err := tpm2.Pub(*ek)
	check(err)
	spki, err := x509.MarshalPKIXPublicKey(public)
	check(err)
	if len(ekCert) > 0 {
		certificate, err := x509.ParseCertificate(ekCert)
		check(err)
		require(bytes.Equal(certificate.RawSubjectPublicKeyInfo, spki), "the certificate is the endorsement key's")
	}
	ak, err := tpm2.Unmarshal[tpm2.TPMTPublic](akPub)
	check(err)
	require(bytes.Equal(tpm2.Marshal(attestationKey(ak.Unique)), akPub), "the attestation key has our template")
	name, err := tpm2.ObjectName(ak)
	check(err)
	return &keys{ek: ek, ekSPKI: spki, akPub: akPub, akName: name.Buffer}
}

// attestationKey returns the public area of an ECDSA attestation key.
func attestationKey(unique tpm2.TPMUPublicID) tpm2.TPMTPublic {
	details := tpm2.NewTPMUAsymScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSigSchemeECDSA{HashAlg: tpm2.TPMAlgSHA256})
	return tpm2.TPMTPublic{
		Type:    tpm2.TPMAlgECC,
		NameAlg: tpm2.TPMAlgSHA256,
		ObjectAttributes: tpm2.TPMAObject{
			FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true, NoDA: true,
			Restricted: true, SignEncrypt: true,
		},
		AuthPolicy: tpm2.TPM2BDigest{Buffer: hash(lp(label("attestation-key-policy")))},
		Parameters: tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{
			Symmetric: tpm2.TPMTSymDefObject{Algorithm: tpm2.TPMAlgNull},
			Scheme:    tpm2.TPMTECCScheme{Scheme: tpm2.TPMAlgECDSA, Details: details},
			CurveID:   tpm2.TPMECCNistP256,
			KDF:       tpm2.TPMTKDFScheme{Scheme: tpm2.TPMAlgNull},
		}),
		Unique: unique,
	}
}

func (k *keys) verifyQuote(quote, signature []byte, values []base64url, selection []int, extra []byte) any {
	require(len(values) == len(selection), "there is one value for each selected PCR")
	var pcrs []attest.PCR
	for i, value := range values {
		pcrs = append(pcrs, attest.PCR{Index: selection[i], Digest: value, DigestAlg: crypto.SHA256})
	}
	key, err := attest.ParseAKPublic(k.akPub)
	check(err)
	check(key.VerifyAll([]attest.Quote{{Quote: quote, Signature: signature}}, pcrs, extra))
	attested, err := tpm2.Unmarshal[tpm2.TPMSAttest](quote)
	check(err)
	qualified := hash(tpm2.HandleName(tpm2.TPMRHEndorsement).Buffer, k.akName)
	require(bytes.Equal(attested.QualifiedSigner.Buffer, append(k.akName[:2:2], qualified...)),
		"the attestation key is a primary key of the endorsement hierarchy")
	info, err := attested.Attested.Quote()
	check(err)
	return map[string]any{
		"ek": fingerprint(k.ekSPKI), "ak": hex.EncodeToString(k.akName), "clock": attested.ClockInfo.Clock,
		"resetCount": attested.ClockInfo.ResetCount, "pcrDigest": hex.EncodeToString(info.PCRDigest.Buffer),
	}
}
