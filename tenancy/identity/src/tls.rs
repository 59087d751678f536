//! Certificates: the role in a client's certificate, and the server side of TLS from PEM files.

use crate::IdentityError;
use crate::old_certificates::WithVersionOne;
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The common name of a certificate's subject: the role.
///
/// # Errors
/// [`IdentityError::Certificate`] if it can't be read or has none.
pub fn common_name(certificate: &CertificateDer<'_>) -> Result<String, IdentityError> {
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|_| IdentityError::Certificate("it can't be read"))?;
    let name = parsed.subject().iter_common_name().next().and_then(|name| name.as_str().ok());
    name.map(str::to_owned).ok_or(IdentityError::Certificate("its subject has no common name"))
}

/// Files and rules of a TLS listener.
#[derive(Debug, Clone, Default)]
pub struct TlsFiles {
    /// `tlsCertificateFilePath`.
    pub certificate: String,
    /// `tlsKeyFilePath`.
    pub key: String,
    /// `tlsTrustCertsFilePath`; empty = client certificates are not asked for.
    pub trust: String,
    /// Clients must show a certificate; otherwise they are asked and may have none.
    pub require_client_certificate: bool,
    /// Protocols offered by ALPN, e.g. `http/1.1`; none for the binary protocol.
    pub alpn: Vec<Vec<u8>>,
}

/// Builds the server side of TLS.
///
/// # Errors
/// [`IdentityError::Config`] naming the setting whose file can't be used.
pub fn server_config(files: &TlsFiles) -> Result<Arc<rustls::ServerConfig>, IdentityError> {
    let chain = certificates("tlsCertificateFilePath", &files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|e| IdentityError::Config { setting: "tlsKeyFilePath", reason: format!("{}: {e}", files.key) })?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| IdentityError::Config { setting: "tlsCertificateFilePath", reason: e.to_string() })?;
    let builder = if files.trust.is_empty() {
        builder.with_no_client_auth()
    } else {
        let mut roots = RootCertStore::empty();
        let authorities = certificates("tlsTrustCertsFilePath", &files.trust)?;
        for authority in authorities.iter().cloned() {
            let refuse =
                |e: rustls::Error| IdentityError::Config { setting: "tlsTrustCertsFilePath", reason: e.to_string() };
            roots.add(authority).map_err(refuse)?;
        }
        let algorithms = provider.signature_verification_algorithms;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = if files.require_client_certificate { verifier } else { verifier.allow_unauthenticated() };
        let refuse = |reason: String| IdentityError::Config { setting: "tlsTrustCertsFilePath", reason };
        let verifier = verifier.build().map_err(|e| refuse(e.to_string()))?;
        builder.with_client_cert_verifier(Arc::new(WithVersionOne::new(verifier, authorities, algorithms)))
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|e| IdentityError::Config { setting: "tlsKeyFilePath", reason: format!("{}: {e}", files.key) })?;
    config.alpn_protocols.clone_from(&files.alpn);
    Ok(Arc::new(config))
}

fn certificates(setting: &'static str, file: &str) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let refuse = |reason: String| IdentityError::Config { setting, reason: format!("{file}: {reason}") };
    let all = CertificateDer::pem_file_iter(Path::new(file)).map_err(|e| refuse(e.to_string()))?;
    let all = all.collect::<Result<Vec<_>, _>>().map_err(|e| refuse(e.to_string()))?;
    if all.is_empty() { Err(refuse("holds no certificate".to_owned())) } else { Ok(all) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_files_name_the_setting() {
        let files = TlsFiles { certificate: "/nowhere/cert.pem".into(), ..TlsFiles::default() };
        let error = server_config(&files).unwrap_err().to_string();
        assert!(error.starts_with("tlsCertificateFilePath: /nowhere/cert.pem: "), "{error}");
    }

    #[test]
    fn a_damaged_certificate_has_no_role() {
        let error = common_name(&CertificateDer::from(vec![1, 2, 3])).unwrap_err();
        assert_eq!(error, IdentityError::Certificate("it can't be read"));
    }
}
