//! Client certificates of X.509 version 1, which many teams' own authorities still write.
//!
//! Role: wraps the ordinary verifier, which refuses that version; everything else is left to it. A version 1 certificate
//! has no extensions, so it must be signed directly by one of the trusted authorities, and can vouch for nobody else.
//! Invariants: X1 only a certificate that says version 1 comes here; X2 issuer name, signature and validity are checked,
//! and the handshake's signature with the certificate's key.
//! Failure: [`rustls::Error`]; the handshake ends.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::sync::Arc;
use x509_parser::prelude::{ASN1Time, FromDer, X509Certificate, X509Version};

/// The ordinary verifier, and version 1 beside it.
#[derive(Debug)]
pub struct WithVersionOne {
    ordinary: Arc<dyn ClientCertVerifier>,
    authorities: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, Error> {
    let parsed = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    Ok(parsed.1)
}

fn is_version_one(certificate: &CertificateDer<'_>) -> bool {
    parse(certificate).is_ok_and(|parsed| parsed.version() == X509Version::V1)
}

/// PKCS#1 v1.5 signatures are of TLS 1.2.
fn is_for_tls13(scheme: SignatureScheme) -> bool {
    use SignatureScheme as S;
    !matches!(scheme, S::RSA_PKCS1_SHA1 | S::RSA_PKCS1_SHA256 | S::RSA_PKCS1_SHA384 | S::RSA_PKCS1_SHA512)
}

impl WithVersionOne {
    /// Over the ordinary verifier of the same authorities.
    pub fn new(
        ordinary: Arc<dyn ClientCertVerifier>,
        authorities: Vec<CertificateDer<'static>>,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Self {
        Self { ordinary, authorities, algorithms }
    }

    fn verify_version_one(&self, certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
        let parsed = parse(certificate)?;
        let seconds = i64::try_from(now.as_secs()).map_err(|_| CertificateError::Expired)?;
        let now = ASN1Time::from_timestamp(seconds).map_err(|_| CertificateError::Expired)?;
        if now < parsed.validity().not_before {
            return Err(CertificateError::NotValidYet.into());
        }
        if now > parsed.validity().not_after {
            return Err(CertificateError::Expired.into());
        }
        let mut known_issuer = false;
        for authority in &self.authorities {
            let authority = parse(authority)?;
            if authority.subject().as_raw() != parsed.issuer().as_raw() {
                continue;
            }
            known_issuer = true;
            if authority.validity().is_valid_at(now) && self.is_signed_by(&parsed, &authority) {
                return Ok(());
            }
        }
        Err(if known_issuer { CertificateError::BadSignature } else { CertificateError::UnknownIssuer }.into())
    }

    fn is_signed_by(&self, certificate: &X509Certificate<'_>, authority: &X509Certificate<'_>) -> bool {
        let oid = certificate.signature_algorithm.algorithm.as_bytes();
        let Ok(length) = u8::try_from(oid.len()) else { return false };
        let wanted = [&[6, length], oid].concat();
        let key = &authority.public_key().subject_public_key.data;
        let (message, signature) = (certificate.tbs_certificate.as_ref(), &certificate.signature_value.data);
        self.algorithms
            .all
            .iter()
            .filter(|algorithm| algorithm.signature_alg_id().as_ref().starts_with(&wanted))
            .any(|algorithm| algorithm.verify_signature(key, message, signature).is_ok())
    }

    fn verify_handshake(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let parsed = parse(certificate)?;
        let key = &parsed.public_key().subject_public_key.data;
        let schemes = self.algorithms.mapping.iter().filter(|(scheme, _)| *scheme == signed.scheme);
        let verified = schemes
            .flat_map(|(_, algorithms)| algorithms.iter())
            .any(|algorithm| algorithm.verify_signature(key, message, signed.signature()).is_ok());
        if verified { Ok(HandshakeSignatureValid::assertion()) } else { Err(CertificateError::BadSignature.into()) }
    }
}

impl ClientCertVerifier for WithVersionOne {
    fn offer_client_auth(&self) -> bool {
        self.ordinary.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.ordinary.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.ordinary.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if !is_version_one(end_entity) {
            return self.ordinary.verify_client_cert(end_entity, intermediates, now);
        }
        self.verify_version_one(end_entity, now)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if !is_version_one(cert) {
            return self.ordinary.verify_tls12_signature(message, cert, dss);
        }
        self.verify_handshake(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if !is_version_one(cert) {
            return self.ordinary.verify_tls13_signature(message, cert, dss);
        }
        if !is_for_tls13(dss.scheme) {
            return Err(CertificateError::BadSignature.into());
        }
        self.verify_handshake(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.ordinary.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::RootCertStore;
    use rustls::server::WebPkiClientVerifier;
    use rustls_pki_types::pem::PemObject;
    use std::time::Duration;

    const AUTHORITY: &str = "-----BEGIN CERTIFICATE-----
MIIBezCCASGgAwIBAgIUKCHJEkAlSFk4VM5lQCR7OClAyt4wCgYIKoZIzj0EAwIw
EjEQMA4GA1UEAwwHVGVzdCBDQTAgFw0yNjExMzAwOTMxNTBaGA8yMTI2MTEwNjA5
MzE1MFowEjEQMA4GA1UEAwwHVGVzdCBDQTBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABIa1jPRFcmQifYX28rfsWZK5oLGc4Oic7d1CYMCvbWnyeBdMl/jv5x5pSQyk
cysZYr4TqxDEnhMtYV5fwfOqhfWjUzBRMB0GA1UdDgQWBBSZFP3CNCR3L65UK0pe
GThy7jF+vDAfBgNVHSMEGDAWgBSZFP3CNCR3L65UK0peGThy7jF+vDAPBgNVHRMB
Af8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIEZd7u6hrUS3y4ir2NRv6pvokWrW
DUCq84wh9du9cs9EAiEAml246uGPuoJqHCq4njzmJA7MHjoghE8bUKJtyhGzIFY=
-----END CERTIFICATE-----";
    /// Version 1, of `old-client`, signed by the authority.
    const CLIENT: &str = "-----BEGIN CERTIFICATE-----
MIIBIjCBygIUJJa4zRKQTKqltUlPqbH0D+SgrYwwCgYIKoZIzj0EAwIwEjEQMA4G
A1UEAwwHVGVzdCBDQTAgFw0yNjExMzAwOTMxNTBaGA8yMTI2MTEwNjA5MzE1MFow
FTETMBEGA1UEAwwKb2xkLWNsaWVudDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IA
BOjUHMFp6RA+3zsZ5iaz3Gbokfee9fZZhLT99B/vX2qD6WHrXsgNvbLMRhzrFV3K
RgroaJzjho2Ez6zhe2jzJswwCgYIKoZIzj0EAwIDRwAwRAIgJHD6cv/4bXgJguew
18Y2ouYNlYgTrSRYoDV+BtVYnDsCIBfTPKkb1yh1Vn+B4//4CqLik6Ow2Kspyr6+
CR2indsH
-----END CERTIFICATE-----";
    /// An authority of another name.
    const OTHER: &str = "-----BEGIN CERTIFICATE-----
MIIBfTCCASOgAwIBAgIUaAXlkVsAESgUNoEkpTJ2b3dz2oAwCgYIKoZIzj0EAwIw
EzERMA8GA1UEAwwIT3RoZXIgQ0EwIBcNMjYxMTMwMDkzMTUwWhgPMjEyNjExMDYw
OTMxNTBaMBMxETAPBgNVBAMMCE90aGVyIENBMFkwEwYHKoZIzj0CAQYIKoZIzj0D
AQcDQgAE6NQcwWnpED7fOxnmJrPcZuiR95719lmEtP30H+9faoPpYeteyA29ssxG
HOsVXcpGCuhonOOGjYTPrOF7aPMmzKNTMFEwHQYDVR0OBBYEFNrbupFeoz7K5YcG
RewczJ8jevRUMB8GA1UdIwQYMBaAFNrbupFeoz7K5YcGRewczJ8jevRUMA8GA1Ud
EwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIgYLuJancHtiYtY0SAvwrZXb9l
ZGMWDVjwJBa7hqljbucCIQDGK55CkJ6M34TbRxtNZbuEBFVkQnun+fV2vrBBG9ri
ag==
-----END CERTIFICATE-----";

    fn certificate(pem: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
    }

    fn verifier(authority: &str) -> WithVersionOne {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let mut roots = RootCertStore::empty();
        roots.add(certificate(authority)).unwrap();
        let ordinary = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        WithVersionOne::new(ordinary, vec![certificate(authority)], algorithms)
    }

    /// A day of the year 2050, well within the certificates' life.
    fn within() -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(2_524_608_000))
    }

    #[test]
    fn a_version_one_certificate_of_a_trusted_authority_is_taken() {
        assert!(verifier(AUTHORITY).verify_client_cert(&certificate(CLIENT), &[], within()).is_ok());
    }

    #[test]
    fn others_are_refused_by_name() {
        let refused =
            |authority, certificate, now| verifier(authority).verify_client_cert(certificate, &[], now).unwrap_err();
        let client = certificate(CLIENT);
        assert_eq!(refused(OTHER, &client, within()), CertificateError::UnknownIssuer.into());
        let early = UnixTime::since_unix_epoch(Duration::from_secs(1_000_000_000));
        assert_eq!(refused(AUTHORITY, &client, early), CertificateError::NotValidYet.into());
        let late = UnixTime::since_unix_epoch(Duration::from_secs(5_000_000_000));
        assert_eq!(refused(AUTHORITY, &client, late), CertificateError::Expired.into());
        // One bit of the subject's name changed: the signature no longer fits.
        let mut bytes = client.to_vec();
        let at = bytes.windows(10).position(|window| window == b"old-client").unwrap();
        bytes[at] ^= 1;
        assert_eq!(refused(AUTHORITY, &CertificateDer::from(bytes), within()), CertificateError::BadSignature.into());
    }
}
