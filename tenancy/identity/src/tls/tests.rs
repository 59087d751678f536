//! Certificates: chains, roles from names, the wrong authority, files that change.

use super::*;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType, date_time_ymd,
};
use rustls::{ClientConnection, ServerConnection};
use rustls_pki_types::ServerName;

/// An authority, and the folder where its files stand.
struct Authority {
    dir: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

struct Wanted {
    common_name: Option<&'static str>,
    alternative: Vec<SanType>,
    until: i32,
}

impl Wanted {
    fn of(common_name: &'static str) -> Self {
        Self { common_name: Some(common_name), alternative: Vec::new(), until: 2100 }
    }
}

impl Authority {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority");
        let key = KeyPair::generate().unwrap();
        std::fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir, issuer: Issuer::new(params, key) }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    fn issue(&self, name: &str, wanted: Wanted) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        if let Some(common_name) = wanted.common_name {
            params.distinguished_name.push(DnType::CommonName, common_name);
        }
        params.subject_alt_names = wanted.alternative;
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(wanted.until, 1, 1);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.path(&format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(self.path(&format!("{name}.key")), key.serialize_pem()).unwrap();
        certificate.der().clone()
    }

    fn server(&self, name: &str, required: bool) -> TlsFiles {
        TlsFiles {
            certificate: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
            trust: self.path("ca.pem"),
            require_client_certificate: required,
            ..TlsFiles::default()
        }
    }

    fn client(&self, trust: &Authority, name: &str) -> ClientFiles {
        let (certificate, key) = match name {
            "" => (String::new(), String::new()),
            name => (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key"))),
        };
        ClientFiles { trust: trust.path("ca.pem"), certificate, key, ..ClientFiles::default() }
    }
}

fn host() -> Wanted {
    let dns = SanType::DnsName("broker.example".try_into().unwrap());
    Wanted { alternative: vec![dns], ..Wanted::of("broker") }
}

/// Shakes hands in memory; answers the certificate that the server saw of the client.
fn shake(
    server: Arc<rustls::ServerConfig>,
    client: Arc<rustls::ClientConfig>,
) -> Result<Option<CertificateDer<'static>>, rustls::Error> {
    let name = ServerName::try_from("broker.example").unwrap();
    let mut client = ClientConnection::new(client, name).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    for _ in 0..10 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        let mut read = bytes.as_slice();
        while !read.is_empty() {
            server.read_tls(&mut read).unwrap();
            server.process_new_packets()?;
        }
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        let mut read = bytes.as_slice();
        while !read.is_empty() {
            client.read_tls(&mut read).unwrap();
            client.process_new_packets()?;
        }
    }
    assert!(!server.is_handshaking() && !client.is_handshaking());
    Ok(server.peer_certificates().map(|chain| chain[0].clone().into_owned()))
}

#[test]
fn missing_files_and_unknown_protocols_name_the_setting() {
    let files = TlsFiles { certificate: "/nowhere/cert.pem".into(), ..TlsFiles::default() };
    let error = server_config(&files).unwrap_err().to_string();
    assert!(error.starts_with("tlsCertificateFilePath: /nowhere/cert.pem: "), "{error}");
    let authority = Authority::new();
    authority.issue("server", host());
    let old = TlsFiles { protocols: vec!["TLSv1.1".into()], ..authority.server("server", false) };
    let error = server_config(&old).unwrap_err().to_string();
    assert_eq!(error, "tlsProtocols: 'TLSv1.1' is not offered; expected TLSv1.3 or TLSv1.2");
}

#[test]
fn a_damaged_certificate_has_no_role() {
    let error = role(&CertificateDer::from(vec![1, 2, 3]), &[RoleField::CommonName], 0).unwrap_err();
    assert_eq!(error, IdentityError::Certificate("it can't be read"));
}

#[test]
fn the_role_comes_from_the_stated_fields_in_their_order() {
    use RoleField::{CommonName, Dns, Email, Uri};
    let authority = Authority::new();
    let wanted = Wanted {
        alternative: vec![
            SanType::Rfc822Name("a@b.example".try_into().unwrap()),
            SanType::URI("spiffe://example/ns/orders".try_into().unwrap()),
            SanType::DnsName("orders.example".try_into().unwrap()),
        ],
        ..Wanted::of("orders")
    };
    let certificate = authority.issue("client", wanted);
    let now_ms = 1_800_000_000_000;
    let of = |fields: &[RoleField]| role(&certificate, fields, now_ms).map(|(role, _)| role);
    assert_eq!(of(&[CommonName]).unwrap(), "orders");
    assert_eq!(of(&[Uri, CommonName]).unwrap(), "spiffe://example/ns/orders");
    assert_eq!(of(&[Dns]).unwrap(), "orders.example");
    assert_eq!(of(&[Email]).unwrap(), "a@b.example");
    assert_eq!(role(&certificate, &[CommonName], now_ms).unwrap().1, 4_102_444_800_000);
    let nameless = authority.issue("nameless", Wanted { common_name: None, ..host() });
    assert!(role(&nameless, &[CommonName], now_ms).unwrap_err().to_string().contains("no common name"));
    assert_eq!(role(&nameless, &[CommonName, Dns], now_ms).unwrap().0, "broker.example");
    assert!(role(&nameless, &[Uri, Email], now_ms).unwrap_err().to_string().contains("tlsClientRoleFrom"));
    assert_eq!(names(&certificate).unwrap(), ["orders", "spiffe://example/ns/orders", "orders.example"]);
}

#[test]
fn a_certificate_proves_nothing_after_its_end() {
    let authority = Authority::new();
    let certificate = authority.issue("client", Wanted { until: 2020, ..Wanted::of("late") });
    let at = |now_ms| role(&certificate, &[RoleField::CommonName], now_ms);
    assert_eq!(at(1_500_000_000_000).unwrap(), ("late".to_owned(), 1_577_836_800_000));
    assert_eq!(at(1_577_836_800_001).unwrap_err(), IdentityError::Certificate("it has expired"));
    assert_eq!(at(1_000).unwrap_err(), IdentityError::Certificate("it is not valid yet"));
}

#[test]
fn only_clients_of_the_trusted_authority_are_let_in() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    ours.issue("server", host());
    ours.issue("client", Wanted::of("ann"));
    ours.issue("old", Wanted { until: 2020, ..Wanted::of("ann") });
    theirs.issue("client", Wanted::of("ann"));
    let server = || server_config(&ours.server("server", true)).unwrap();
    let client = |of: &Authority, name: &str| client_config("x", &of.client(&ours, name)).unwrap();
    let seen = shake(server(), client(&ours, "client")).unwrap().unwrap();
    assert_eq!(role(&seen, &[RoleField::CommonName], 1_800_000_000_000).unwrap().0, "ann");
    assert!(shake(server(), client(&theirs, "client")).is_err(), "the wrong authority, the right name");
    assert!(shake(server(), client(&ours, "old")).is_err(), "expired");
    assert!(shake(server(), client(&ours, "")).is_err(), "none");
    let lenient = server_config(&ours.server("server", false)).unwrap();
    assert_eq!(shake(lenient.clone(), client(&ours, "")).unwrap(), None);
    assert!(shake(lenient, client(&theirs, "client")).is_err(), "a wrong one is worse than none");
    let wary = client_config("x", &theirs.client(&theirs, "client")).unwrap();
    assert!(shake(server(), wary).is_err(), "a client checks the server, too");
}

#[test]
fn renewed_files_are_taken_and_half_renewed_ones_are_not() {
    let authority = Authority::new();
    let first = authority.issue("server", host());
    let tls = ServerTls::new(authority.server("server", false)).unwrap();
    let client = || client_config("x", &authority.client(&authority, "")).unwrap();
    assert!(shake(tls.current(), client()).is_ok());
    let key = std::fs::read(authority.path("server.key")).unwrap();
    let second = authority.issue("server", host());
    assert_ne!(first, second);
    let renewed_key = std::fs::read(authority.path("server.key")).unwrap();
    std::fs::write(authority.path("server.key"), key).unwrap();
    assert!(shake(tls.current(), client()).is_ok(), "the old pair holds while the new one is written");
    assert_eq!(tls.failures(), 1);
    std::fs::write(authority.path("server.key"), [renewed_key.as_slice(), b"\n"].concat()).unwrap();
    let before = tls.current();
    assert!(shake(before, client()).is_ok());
    let other = Authority::new();
    std::fs::copy(other.path("ca.pem"), authority.path("ca.pem")).unwrap();
    other.issue("client", Wanted::of("x"));
    let stranger =
        client_config("x", &ClientFiles { trust: authority.path("ca.pem"), ..other.client(&other, "client") });
    assert!(shake(tls.current(), stranger.unwrap()).is_err(), "the server still shows the old authority's certificate");
}
