//! `meridian certs dev`: an authority of one's own, and certificates by it, for development and tests.
//!
//! The authority's key stands beside its certificate: who can read the folder can be anybody. Not for production.
//! Invariants: what is there is kept: a second call adds certificates under the same authority and never overwrites one.
//! Failure: names the file.

use crate::cli::Failure;
use clap::{Args, Subcommand};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Clocks of others may be a little behind.
const BACKDATED: Duration = Duration::from_secs(300);
const DAY: Duration = Duration::from_secs(86_400);

#[derive(Subcommand)]
pub enum CertsCommand {
    /// An authority, a server certificate, and client certificates whose common names are roles.
    Dev(DevArgs),
}

#[derive(Args)]
pub struct DevArgs {
    /// The folder; made if absent.
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Names and addresses of the server.
    #[arg(long = "host", value_name = "NAME", default_values = ["localhost", "127.0.0.1", "::1"])]
    hosts: Vec<String>,
    /// A role that gets a client certificate. May be given many times.
    #[arg(long = "client", value_name = "ROLE")]
    clients: Vec<String>,
    /// A region that gets a certificate for its region link. May be given many times.
    #[arg(long = "region", value_name = "NAME")]
    regions: Vec<String>,
    /// Days that certificates are valid.
    #[arg(long, value_name = "DAYS", default_value_t = 365)]
    days: u32,
}

/// Runs it.
///
/// # Errors
/// A file that can't be written, or names that can't stand in a certificate.
pub fn run(command: CertsCommand) -> Result<(), Failure> {
    let CertsCommand::Dev(args) = command;
    std::fs::create_dir_all(&args.output).map_err(|error| format!("{}: {error}", args.output.display()))?;
    let authority = authority(&args)?;
    let mut params = CertificateParams::new(args.hosts.clone())?;
    params.distinguished_name = named(args.hosts.first().map_or("localhost", String::as_str));
    issue(&args, &authority, "server", params)?;
    for region in &args.regions {
        let mut params = CertificateParams::new(args.hosts.clone())?;
        params.distinguished_name = named(region);
        issue(&args, &authority, &file_name(region)?, params)?;
    }
    for role in &args.clients {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name = named(role);
        issue(&args, &authority, &file_name(role)?, params)?;
    }
    Ok(())
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

/// A role as the name of a file.
fn file_name(role: &str) -> Result<String, Failure> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    let reserved = ["ca", "server", ".", ".."].contains(&role);
    if role.is_empty() || reserved || !role.chars().all(allowed) {
        return Err(format!("'{role}' can't be the name of a file: expected letters, digits and - _ . @").into());
    }
    Ok(role.to_owned())
}

fn valid(params: &mut CertificateParams, days: u32) {
    let now = SystemTime::now();
    params.not_before = (now - BACKDATED).into();
    params.not_after = (now + DAY * days.max(1)).into();
}

fn authority(args: &DevArgs) -> Result<Issuer<'static, KeyPair>, Failure> {
    let (certificate, key) = (args.output.join("ca.pem"), args.output.join("ca.key"));
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name = named("meridian development authority");
    valid(&mut params, args.days.saturating_mul(10));
    if certificate.is_file() && key.is_file() {
        let pem = std::fs::read_to_string(&key).map_err(|error| format!("{}: {error}", key.display()))?;
        // Issuer name and key are the same; that is all that signing needs.
        return Ok(Issuer::new(params, KeyPair::from_pem(&pem)?));
    }
    let pair = KeyPair::generate()?;
    write(&key, &pair.serialize_pem(), 0o600)?;
    write(&certificate, &params.self_signed(&pair)?.pem(), 0o644)?;
    Ok(Issuer::new(params, pair))
}

fn issue(
    args: &DevArgs,
    authority: &Issuer<'static, KeyPair>,
    name: &str,
    mut params: CertificateParams,
) -> Result<(), Failure> {
    let (certificate, key) = (args.output.join(format!("{name}.pem")), args.output.join(format!("{name}.key")));
    if certificate.exists() {
        return Ok(());
    }
    valid(&mut params, args.days);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let pair = KeyPair::generate()?;
    write(&key, &pair.serialize_pem(), 0o600)?;
    write(&certificate, &params.signed_by(&pair, authority)?.pem(), 0o644)?;
    println!("{}", certificate.display());
    Ok(())
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| format!("{}: {error}", path.display()).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use meridian_identity::tls::{ClientFiles, ServerTls, TlsFiles, client_config};

    #[test]
    fn a_folder_holds_what_listeners_and_clients_need() {
        let dir = tempfile::tempdir().expect("a folder");
        let args = |clients: &[&str]| DevArgs {
            output: dir.path().to_owned(),
            hosts: vec!["localhost".into(), "127.0.0.1".into()],
            clients: clients.iter().map(|&role| role.to_owned()).collect(),
            regions: vec!["west".into()],
            days: 1,
        };
        run(CertsCommand::Dev(args(&["admin"]))).expect("they are made");
        let first = std::fs::read(dir.path().join("admin.pem")).expect("it is there");
        run(CertsCommand::Dev(args(&["admin", "ann"]))).expect("one is added");
        assert_eq!(std::fs::read(dir.path().join("admin.pem")).expect("it is there"), first);
        let path = |name: &str| dir.path().join(name).display().to_string();
        for name in ["server", "west"] {
            let files = TlsFiles {
                certificate: path(&format!("{name}.pem")),
                key: path(&format!("{name}.key")),
                trust: path("ca.pem"),
                ..TlsFiles::default()
            };
            assert!(ServerTls::new(files).is_ok());
        }
        let files = ClientFiles {
            trust: path("ca.pem"),
            certificate: path("ann.pem"),
            key: path("ann.key"),
            ..ClientFiles::default()
        };
        assert!(client_config("x", &files).is_ok());
        for bad in ["", "..", "a/b", "ca", "server"] {
            assert!(run(CertsCommand::Dev(args(&[bad]))).is_err(), "{bad}");
        }
    }
}
