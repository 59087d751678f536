//! TLS: trust, names, certificates of this side.

use crate::server::Server;
use meridian_client::{ClientError, Credentials, Peer, PeerPool, TlsSettings};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::PathBuf;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/certificates").join(name)
}

/// For `localhost`; with `asks` a client has to show a certificate.
fn acceptor(asks: bool) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let builder = builder.unwrap();
    let builder = if asks {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(file("ca.pem")).unwrap()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        builder.with_client_cert_verifier(verifier)
    } else {
        builder.with_no_client_auth()
    };
    let certificate = CertificateDer::from_pem_file(file("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(file("server.key")).unwrap();
    TlsAcceptor::from(Arc::new(builder.with_single_cert(vec![certificate], key).unwrap()))
}

fn trusting(server: &Server, url: &str) -> Peer {
    let mut peer = server.peer();
    peer.service_url = meridian_client::ServiceUrl::parse(url).unwrap();
    peer.tls.trust_file = Some(file("ca.pem"));
    peer
}

/// What comes of connecting to a server.
async fn outcome(server: &Server, peer: Peer) -> Result<(), ClientError> {
    let pool = PeerPool::new(peer);
    let broker = async {
        if let Some(mut session) = server.try_accept().await
            && let Some(meridian_wire::proto::base_command::Body::Connect(connect)) = session.try_body().await
        {
            session.send(crate::server::connected()).await;
            return Some((connect, session));
        }
        None
    };
    let (connection, _session) = tokio::join!(pool.any(), broker);
    connection.map(drop)
}

#[tokio::test]
async fn a_certificate_of_a_trusted_issuer_for_the_host_is_taken() {
    let server = Server::with(Some(acceptor(false))).await;
    outcome(&server, trusting(&server, &server.url())).await.unwrap();
}

#[tokio::test]
async fn a_name_that_the_certificate_is_not_for_is_refused_unless_told_otherwise() {
    let server = Server::with(Some(acceptor(false))).await;
    let url = server.url().replace("localhost", "127.0.0.1");
    let refused = outcome(&server, trusting(&server, &url)).await.unwrap_err();
    assert!(matches!(&refused, ClientError::Connect { reason, .. } if reason.starts_with("TLS: ")), "{refused}");
    let mut any_name = trusting(&server, &url);
    any_name.tls.verify_hostname = false;
    outcome(&server, any_name).await.unwrap();
}

#[tokio::test]
async fn an_issuer_that_is_not_trusted_is_refused_unless_told_otherwise() {
    let server = Server::with(Some(acceptor(false))).await;
    for verify_hostname in [true, false] {
        let mut strangers = trusting(&server, &server.url());
        strangers.tls.trust_file = Some(file("server.pem"));
        strangers.tls.verify_hostname = verify_hostname;
        let refused = outcome(&server, strangers).await.unwrap_err();
        assert!(refused.to_string().contains("TLS: "), "{refused}");
    }
    let mut insecure = server.peer();
    insecure.tls.allow_insecure = true;
    outcome(&server, insecure).await.unwrap();
}

#[tokio::test]
async fn this_side_shows_its_certificate() {
    let server = Server::with(Some(acceptor(true))).await;
    let mut peer = trusting(&server, &server.url());
    peer.tls.certificate_file = Some(file("client.pem"));
    peer.tls.key_file = Some(file("client.key"));
    peer.credentials = Credentials::Certificate;
    outcome(&server, peer).await.unwrap();
    outcome(&server, trusting(&server, &server.url())).await.unwrap_err();
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let server = Server::with(Some(acceptor(false))).await;
    let missing = Some(PathBuf::from("/does/not/exist.pem"));
    let half = TlsSettings { certificate_file: Some(file("client.pem")), ..TlsSettings::default() };
    let no_trust = TlsSettings { trust_file: missing.clone(), ..TlsSettings::default() };
    let no_key = TlsSettings {
        trust_file: Some(file("ca.pem")),
        certificate_file: Some(file("client.pem")),
        key_file: Some(file("ca.pem")),
        ..TlsSettings::default()
    };
    for (tls, named) in [(half, "belong together"), (no_trust, "exist.pem"), (no_key, "ca.pem")] {
        let mut peer = trusting(&server, &server.url());
        peer.tls = TlsSettings { trust_file: tls.trust_file.clone().or(Some(file("ca.pem"))), ..tls };
        let refused = PeerPool::new(peer).any().await.unwrap_err();
        assert!(matches!(&refused, ClientError::Setting { .. }), "{refused}");
        assert!(refused.to_string().contains(named), "{refused}");
    }
}
