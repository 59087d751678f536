//! TLS towards a peer.
//!
//! Invariants: files are read for each connection, so that rotated certificates need no restart; a peer's certificate is
//! verified unless `allow_insecure` says otherwise, its name unless `verify_hostname` is off; signatures always are.
//! Failure: [`ClientError::Setting`], which names the file.
//! Must never know: what is sent.

use crate::ClientError;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Where systems keep the certificates that they trust.
const SYSTEM_TRUST: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// How TLS is done towards a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSettings {
    /// Certificates that are trusted (PEM); without it, those that the system trusts.
    pub trust_file: Option<PathBuf>,
    /// This side's certificates (PEM).
    pub certificate_file: Option<PathBuf>,
    /// The key of the first of them (PEM).
    pub key_file: Option<PathBuf>,
    /// Take any certificate. Whoever is on the way can then read and change everything.
    pub allow_insecure: bool,
    /// Check that the certificate is for the host that is dialled.
    pub verify_hostname: bool,
}

impl Default for TlsSettings {
    fn default() -> Self {
        Self { trust_file: None, certificate_file: None, key_file: None, allow_insecure: false, verify_hostname: true }
    }
}

impl TlsSettings {
    /// Reads the files.
    ///
    /// # Errors
    /// [`ClientError::Setting`].
    /// Makes a connection to a host one by TLS, for whoever speaks another protocol over it.
    ///
    /// # Errors
    /// Files that can't be read, or a server that is not trusted.
    pub async fn connect(&self, stream: TcpStream, host: &str) -> Result<TlsStream<TcpStream>, ClientError> {
        let refused = |error: &dyn std::fmt::Display| ClientError::setting(format!("TLS with {host}"), error);
        let name = ServerName::try_from(host.to_owned()).map_err(|error| refused(&error))?;
        self.connector().await?.connect(name, stream).await.map_err(|error| refused(&error))
    }

    pub(crate) async fn connector(&self) -> Result<TlsConnector, ClientError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| ClientError::setting("TLS versions", error))?;
        let verifier = self.verifier(provider).await?;
        let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
        let config = match (&self.certificate_file, &self.key_file) {
            (Some(certificates), Some(key)) => builder
                .with_client_auth_cert(read_certificates(certificates).await?, read_key(key).await?)
                .map_err(|error| ClientError::setting(format!("key {}", key.display()), error))?,
            (None, None) => builder.with_no_client_auth(),
            _ => return Err(ClientError::setting("TLS", "a certificate and its key belong together")),
        };
        Ok(TlsConnector::from(Arc::new(config)))
    }

    async fn verifier(&self, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, ClientError> {
        if self.allow_insecure {
            return Ok(Arc::new(TakeAny(provider)));
        }
        let path = match &self.trust_file {
            Some(path) => path.clone(),
            None => system_trust()?,
        };
        let mut roots = RootCertStore::empty();
        // A system's bundle may hold certificates that are too old to be understood; one that counts is enough.
        let (added, ignored) = roots.add_parsable_certificates(read_certificates(&path).await?);
        if added == 0 {
            let reason = format!("none of {ignored} certificates can be trusted");
            return Err(ClientError::setting(format!("trust file {}", path.display()), reason));
        }
        let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| ClientError::setting(format!("trust file {}", path.display()), error))?;
        Ok(if self.verify_hostname { inner } else { Arc::new(AnyName(inner)) })
    }
}

fn system_trust() -> Result<PathBuf, ClientError> {
    let found = SYSTEM_TRUST.iter().map(Path::new).find(|path| path.is_file());
    found
        .map(Path::to_owned)
        .ok_or_else(|| ClientError::setting("TLS trust", "no file is given and the system has none"))
}

async fn read(path: &Path) -> Result<Vec<u8>, ClientError> {
    tokio::fs::read(path).await.map_err(|error| ClientError::setting(format!("file {}", path.display()), error))
}

async fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ClientError> {
    let pem = read(path).await?;
    let refuse = |reason: String| ClientError::setting(format!("certificates {}", path.display()), reason);
    let found = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    match found {
        Ok(found) if found.is_empty() => Err(refuse("there is none".to_owned())),
        Ok(found) => Ok(found),
        Err(error) => Err(refuse(error.to_string())),
    }
}

async fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, ClientError> {
    let pem = read(path).await?;
    PrivateKeyDer::from_pem_slice(&pem).map_err(|error| ClientError::setting(format!("key {}", path.display()), error))
}

/// Takes any certificate.
#[derive(Debug)]
struct TakeAny(Arc<CryptoProvider>);

/// Takes a certificate of a trusted issuer for any name.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for TakeAny {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is compared last, so everything else holds.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
