//! Mutual TLS to the placement driver and the store.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use meridian_metadata::{Condition, MetadataError, SharedStore};
use meridian_metadata_tikv::TikvStore;
use meridian_mini_tikv::{MiniTikv, TikvOptions, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// An authority and a certificate by it, in a folder.
struct Issued {
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
}

fn authority() -> (Issuer<'static, KeyPair>, String) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pair = KeyPair::generate().unwrap();
    let pem = params.self_signed(&pair).unwrap().pem();
    (Issuer::new(params, pair), pem)
}

fn issue(folder: &Path, name: &str, (issuer, ca): &(Issuer<'static, KeyPair>, String)) -> Issued {
    let params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).unwrap();
    let pair = KeyPair::generate().unwrap();
    let file = |what: &str, text: &str| {
        let path = folder.join(format!("{name}.{what}.pem"));
        std::fs::write(&path, text).unwrap();
        path
    };
    Issued {
        ca: file("ca", ca),
        cert: file("cert", &params.signed_by(&pair, issuer).unwrap().pem()),
        key: file("key", &pair.serialize_pem()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_show_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let (trusted, other) = (authority(), authority());
    let server_files = issue(folder.path(), "server", &trusted);
    let tls = TlsFiles { ca: server_files.ca, cert: server_files.cert, key: server_files.key };
    let server = MiniTikv::start(&TikvOptions { tls: Some(tls), ..support::many_regions() }).unwrap();
    let with = |files: &Issued| {
        let mut config = support::config(&server);
        config.pd_endpoints = vec![format!("localhost:{}", server.address().port())];
        config.ca_path = Some(files.ca.clone());
        config.cert_path = Some(files.cert.clone());
        config.key_path = Some(files.key.clone());
        config.call_timeout_ms = 3000;
        config
    };
    let good = issue(folder.path(), "good", &trusted);
    let store: SharedStore = TikvStore::connect(with(&good)).await.unwrap();
    store.put("k", "1", Condition::Any).await.unwrap();
    assert_eq!(store.scan("").await.unwrap().len(), 1);

    let stranger = issue(folder.path(), "stranger", &other);
    let unknown_client = Issued { ca: good.ca.clone(), cert: stranger.cert.clone(), key: stranger.key.clone() };
    let unknown_server = Issued { ca: stranger.ca.clone(), cert: good.cert.clone(), key: good.key.clone() };
    for refused in [unknown_client, unknown_server] {
        let connected = tokio::time::timeout(Duration::from_secs(20), TikvStore::connect(with(&refused))).await;
        assert!(matches!(connected.expect("in time"), Err(MetadataError::Unavailable(_))));
    }
    let mut plain = support::config(&server);
    plain.call_timeout_ms = 3000;
    assert!(matches!(TikvStore::connect(plain).await, Err(MetadataError::Unavailable(_))));
}
