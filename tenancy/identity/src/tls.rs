//! Certificates: the role in a client's certificate, and both sides of TLS from PEM files that are read again when they
//! change.
//!
//! Invariants: L1 a connection is made with the files as they are at its beginning, at most the stated interval old; files
//! that do not fit together leave the last good ones in force (I3); L2 a certificate is a client's proof only while it is
//! valid, also on a connection that was made before it ended; L3 a role comes from the stated fields, in their order.
//! Failure: [`IdentityError::Config`] names the setting.
//! Must never know: what is sent.

use crate::IdentityError;
use crate::old_certificates::WithVersionOne;
use crate::watched::Watched;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, SupportedProtocolVersion};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};

/// A field of a certificate that may hold the role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleField {
    /// The common name of the subject.
    CommonName,
    /// The first DNS name of the subject alternative names.
    Dns,
    /// The first URI of the subject alternative names (a SPIFFE id, for instance).
    Uri,
    /// The first mail address of the subject alternative names.
    Email,
}

impl RoleField {
    /// By its name in `tlsClientRoleFrom`.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "CN" => Some(RoleField::CommonName),
            "SAN_DNS" => Some(RoleField::Dns),
            "SAN_URI" => Some(RoleField::Uri),
            "SAN_EMAIL" => Some(RoleField::Email),
            _ => None,
        }
    }
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, IdentityError> {
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|_| IdentityError::Certificate("it can't be read"))?;
    Ok(parsed)
}

fn field(certificate: &X509Certificate<'_>, field: RoleField) -> Option<String> {
    if field == RoleField::CommonName {
        return certificate.subject().iter_common_name().next()?.as_str().ok().map(str::to_owned);
    }
    alternative_names(certificate).find_map(|name| match (field, name) {
        (RoleField::Dns, GeneralName::DNSName(text))
        | (RoleField::Uri, GeneralName::URI(text))
        | (RoleField::Email, GeneralName::RFC822Name(text)) => Some((*text).to_owned()),
        _ => None,
    })
}

fn alternative_names<'a>(certificate: &'a X509Certificate<'_>) -> impl Iterator<Item = &'a GeneralName<'a>> {
    let names = certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
        _ => None,
    });
    names.into_iter().flatten()
}

/// The role in a certificate, and when it ends (ms since 1970).
///
/// # Errors
/// [`IdentityError::Certificate`] if it can't be read, is not valid at `now_ms` (L2) or none of the fields is there.
pub fn role(
    certificate: &CertificateDer<'_>,
    fields: &[RoleField],
    now_ms: u64,
) -> Result<(String, u64), IdentityError> {
    let parsed = parse(certificate)?;
    let end_ms = |time: x509_parser::time::ASN1Time| u64::try_from(time.timestamp()).unwrap_or(0).saturating_mul(1000);
    let (from_ms, until_ms) = (end_ms(parsed.validity().not_before), end_ms(parsed.validity().not_after));
    if now_ms < from_ms {
        return Err(IdentityError::Certificate("it is not valid yet"));
    }
    if now_ms > until_ms {
        return Err(IdentityError::Certificate("it has expired"));
    }
    let found = fields.iter().find_map(|one| field(&parsed, *one)).filter(|role| !role.is_empty());
    match (found, fields) {
        (Some(role), _) => Ok((role, until_ms)),
        (None, [RoleField::CommonName]) => Err(IdentityError::Certificate("its subject has no common name")),
        (None, _) => Err(IdentityError::Certificate("it has none of the fields that tlsClientRoleFrom names")),
    }
}

/// Names that a certificate gives its holder: the common name, DNS names and URIs.
///
/// # Errors
/// [`IdentityError::Certificate`] if it can't be read.
pub fn names(certificate: &CertificateDer<'_>) -> Result<Vec<String>, IdentityError> {
    let parsed = parse(certificate)?;
    let mut names: Vec<String> = field(&parsed, RoleField::CommonName).into_iter().collect();
    names.extend(alternative_names(&parsed).filter_map(|name| match name {
        GeneralName::DNSName(text) | GeneralName::URI(text) => Some((*text).to_owned()),
        _ => None,
    }));
    Ok(names)
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
    /// `tlsProtocols`: `TLSv1.3`, `TLSv1.2`; empty = both.
    pub protocols: Vec<String>,
    /// Protocols offered by ALPN, e.g. `http/1.1`; none for the binary protocol.
    pub alpn: Vec<Vec<u8>>,
    /// Files are looked at again that often.
    pub look_again: Duration,
}

/// Files of a TLS client.
#[derive(Debug, Clone, Default)]
pub struct ClientFiles {
    /// Authorities of servers.
    pub trust: String,
    /// The own certificate; empty = none is shown.
    pub certificate: String,
    /// Its key.
    pub key: String,
    /// Files are looked at again that often.
    pub look_again: Duration,
}

/// The server side of TLS, by files that may change.
#[derive(Clone)]
pub struct ServerTls(Arc<Watched<Arc<rustls::ServerConfig>>>);

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`IdentityError::Config`] naming the setting whose file can't be used.
    pub fn new(files: TlsFiles) -> Result<Self, IdentityError> {
        let paths = paths(&[&files.certificate, &files.key, &files.trust]);
        let look_again = files.look_again;
        let made = Watched::new("certificates of listeners", paths, look_again, move || server_config(&files))?;
        Ok(Self(Arc::new(made)))
    }

    /// As the files are now (L1).
    pub fn current(&self) -> Arc<rustls::ServerConfig> {
        Arc::clone(&self.0.current())
    }

    /// Times that changed files could not be used.
    pub fn failures(&self) -> u64 {
        self.0.failures()
    }
}

/// The client side of TLS, by files that may change.
#[derive(Clone)]
pub struct ClientTls(Arc<Watched<Arc<rustls::ClientConfig>>>);

impl ClientTls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`IdentityError::Config`] naming the setting.
    pub fn new(setting: &'static str, files: ClientFiles) -> Result<Self, IdentityError> {
        let paths = paths(&[&files.certificate, &files.key, &files.trust]);
        let look_again = files.look_again;
        let made =
            Watched::new("certificates of connections", paths, look_again, move || client_config(setting, &files))?;
        Ok(Self(Arc::new(made)))
    }

    /// As the files are now (L1).
    pub fn current(&self) -> Arc<rustls::ClientConfig> {
        Arc::clone(&self.0.current())
    }
}

fn paths(files: &[&String]) -> Vec<PathBuf> {
    files.iter().filter(|file| !file.is_empty()).map(PathBuf::from).collect()
}

fn versions(names: &[String]) -> Result<Vec<&'static SupportedProtocolVersion>, IdentityError> {
    if names.is_empty() {
        return Ok(rustls::ALL_VERSIONS.to_vec());
    }
    let version = |name: &String| match name.as_str() {
        "TLSv1.3" => Ok(&rustls::version::TLS13),
        "TLSv1.2" => Ok(&rustls::version::TLS12),
        other => Err(IdentityError::Config {
            setting: "tlsProtocols",
            reason: format!("'{other}' is not offered; expected TLSv1.3 or TLSv1.2"),
        }),
    };
    names.iter().map(version).collect()
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
        .with_protocol_versions(&versions(&files.protocols)?)
        .map_err(|e| IdentityError::Config { setting: "tlsProtocols", reason: e.to_string() })?;
    let builder = if files.trust.is_empty() {
        builder.with_no_client_auth()
    } else {
        let authorities = certificates("tlsTrustCertsFilePath", &files.trust)?;
        let roots = roots("tlsTrustCertsFilePath", &authorities)?;
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

/// Builds the client side of TLS. Servers are always checked against the authorities and by their name.
///
/// # Errors
/// [`IdentityError::Config`] naming the setting.
pub fn client_config(setting: &'static str, files: &ClientFiles) -> Result<Arc<rustls::ClientConfig>, IdentityError> {
    let refuse = |reason: String| IdentityError::Config { setting, reason };
    let roots = roots(setting, &certificates(setting, &files.trust)?)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| refuse(e.to_string()))?
        .with_root_certificates(roots);
    if files.certificate.is_empty() {
        return Ok(Arc::new(builder.with_no_client_auth()));
    }
    let chain = certificates(setting, &files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|e| refuse(format!("{}: {e}", files.key)))?;
    Ok(Arc::new(builder.with_client_auth_cert(chain, key).map_err(|e| refuse(e.to_string()))?))
}

fn roots(setting: &'static str, authorities: &[CertificateDer<'static>]) -> Result<RootCertStore, IdentityError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities.iter().cloned() {
        roots.add(authority).map_err(|e| IdentityError::Config { setting, reason: e.to_string() })?;
    }
    Ok(roots)
}

fn certificates(setting: &'static str, file: &str) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let refuse = |reason: String| IdentityError::Config { setting, reason: format!("{file}: {reason}") };
    let all = CertificateDer::pem_file_iter(Path::new(file)).map_err(|e| refuse(e.to_string()))?;
    let all = all.collect::<Result<Vec<_>, _>>().map_err(|e| refuse(e.to_string()))?;
    if all.is_empty() { Err(refuse("holds no certificate".to_owned())) } else { Ok(all) }
}

#[cfg(test)]
mod tests;
