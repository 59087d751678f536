//! The provider as Terraform sees it: started as a process, trusted by the handshake, asked over gRPC.

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use hyper_util::rt::TokioIo;
use meridian_policy::quota::Limit;
use meridian_policy::schema::{NAMESPACE, TOPIC};
use meridian_terraform::protocol as p;
use meridian_terraform::protocol::attribute_path::step::Selector;
use meridian_terraform::protocol::provider_client::ProviderClient;
use meridian_terraform::{Value, snake};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

const PROGRAM: &str = env!("CARGO_BIN_EXE_terraform-provider-meridian");
const COOKIE: &str = "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2";
const WITHIN: Duration = Duration::from_secs(20);

/// A certificate that is its own authority, as Terraform makes one for each run.
struct Identity {
    pem: String,
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

fn identity() -> Identity {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512).expect("a key");
    let mut asked = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
    asked.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let made = asked.self_signed(&key).expect("a certificate");
    Identity { pem: made.pem(), certificate: made.der().clone(), key: key.serialize_der() }
}

/// Ends with the test.
struct Plugin(Child);

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(client: &Identity, versions: &str) -> Plugin {
    let child = Command::new(PROGRAM)
        .env("TF_PLUGIN_MAGIC_COOKIE", COOKIE)
        .env("PLUGIN_PROTOCOL_VERSIONS", versions)
        .env("PLUGIN_CLIENT_CERT", &client.pem)
        .env_remove("MERIDIAN_URL")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the provider starts");
    Plugin(child)
}

/// Socket and certificate from the handshake's line.
async fn handshake(plugin: &mut Plugin) -> (String, CertificateDer<'static>) {
    let out = plugin.0.stdout.take().expect("a pipe");
    let first = tokio::task::spawn_blocking(move || BufReader::new(out).lines().next());
    let line = tokio::time::timeout(WITHIN, first).await.expect("in time").expect("read").expect("a line");
    let line = line.expect("text");
    let parts: Vec<&str> = line.split('|').collect();
    assert_eq!((parts[0], parts[1], parts[2], parts[4]), ("1", "6", "unix", "grpc"), "{line}");
    let certificate = STANDARD_NO_PAD.decode(parts[5]).expect("base64");
    (parts[3].to_owned(), CertificateDer::from(certificate))
}

async fn connect(socket: &str, server: &CertificateDer<'static>, client: &Identity) -> Result<Channel, String> {
    let mut roots = RootCertStore::empty();
    roots.add(server.clone()).map_err(|error| error.to_string())?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(client.key.clone()));
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![client.certificate.clone()], key)
        .map_err(|error| error.to_string())?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    let (connector, socket) = (TlsConnector::from(Arc::new(config)), socket.to_owned());
    let dial = tower::service_fn(move |_| {
        let (connector, socket) = (connector.clone(), socket.clone());
        async move {
            let stream = UnixStream::connect(socket).await?;
            let name = ServerName::try_from("localhost").expect("a name");
            Ok::<_, std::io::Error>(TokioIo::new(connector.connect(name, stream).await?))
        }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    endpoint.connect_with_connector(dial).await.map_err(|error| format!("{error:?}"))
}

async fn provider() -> (Plugin, ProviderClient<Channel>) {
    let client = identity();
    let mut plugin = start(&client, "5,6");
    let (socket, server) = handshake(&mut plugin).await;
    let channel = connect(&socket, &server, &client).await.expect("it lets in who started it");
    (plugin, ProviderClient::new(channel))
}

fn object(pairs: &[(&str, Value)]) -> Option<p::DynamicValue> {
    let map: BTreeMap<_, _> = pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    Some(p::DynamicValue { msgpack: Value::Map(map).pack(), json: Vec::new() })
}

fn unpacked(value: Option<&p::DynamicValue>) -> BTreeMap<String, Value> {
    match Value::unpack(&value.expect("a value").msgpack).expect("readable") {
        Value::Map(map) => map,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn every_policy_is_an_attribute() {
    let (_plugin, mut provider) = provider().await;
    let schema = provider.get_provider_schema(p::get_provider_schema::Request {}).await.expect("answered").into_inner();
    assert_eq!((schema.resource_schemas.len(), schema.data_source_schemas.len()), (11, 6));
    let names = |kind: &str| -> BTreeSet<String> {
        let block = schema.resource_schemas[kind].block.clone().expect("a block");
        block.attributes.into_iter().map(|attribute| attribute.name).collect()
    };
    let (namespace, topic) = (names("meridian_namespace"), names("meridian_topic"));
    for spec in NAMESPACE {
        assert!(namespace.contains(&snake(spec.name)), "{} has no attribute", spec.name);
    }
    for spec in TOPIC {
        assert!(topic.contains(&snake(spec.name)), "{} has no attribute", spec.name);
    }
    let quota = names("meridian_quota");
    for limit in Limit::ALL {
        assert!(quota.contains(&snake(limit.name())), "{limit} has no attribute");
    }
    for (kind, schema) in &schema.resource_schemas {
        let block = schema.block.clone().expect("a block");
        assert!(block.attributes.iter().all(|attribute| !attribute.description.is_empty()), "{kind}");
        assert_eq!(names(kind).len(), block.attributes.len(), "{kind}: a name twice");
    }
}

#[tokio::test]
async fn a_value_that_can_not_be_is_told_at_its_attribute() {
    let (_plugin, mut provider) = provider().await;
    let config = object(&[
        ("tenant", Value::Unknown),
        ("name", Value::text("n")),
        ("message_ttl", Value::Number((-1).into())),
        ("max_topics_per_namespace", Value::Unknown),
    ]);
    let request = p::validate_resource_config::Request { type_name: "meridian_namespace".into(), config };
    let told = provider.validate_resource_config(request).await.expect("answered").into_inner().diagnostics;
    assert_eq!(told.len(), 1, "{told:?}");
    let step = &told[0].attribute.as_ref().expect("a path").steps[0];
    assert_eq!(step.selector, Some(Selector::AttributeName("message_ttl".into())));
    assert!(told[0].detail.contains("expected a whole number from 0 to 4294967295"), "{told:?}");
}

#[tokio::test]
async fn a_limit_that_can_not_be_is_told_at_its_attribute() {
    let (_plugin, mut provider) = provider().await;
    let number = |number: i64| Value::Number(number.into());
    let of_place = |name: &'static str, place: Value| (name, place);
    for (pairs, at, says) in [
        (vec![of_place("tenant", Value::Unknown), ("producers", number(-1))], "producers", "from 0 to"),
        (
            vec![of_place("tenant", Value::text("t")), ("publish_bytes_per_second", number(0))],
            "publish_bytes_per_second",
            "from 1 to",
        ),
        (
            vec![of_place("namespace", Value::text("t/n")), ("namespaces", number(1))],
            "namespaces",
            "is no limit of a namespace",
        ),
        (vec![of_place("topic", Value::Unknown), ("topics", number(1))], "topics", "is no limit of a topic"),
        (
            vec![of_place("namespace", Value::text("t")), ("topics", number(1))],
            "namespace",
            "no name that one can have",
        ),
        (
            vec![of_place("tenant", Value::text("t")), ("layer", Value::text("tenant")), ("topics", number(1))],
            "layer",
            "topics alone",
        ),
        (
            vec![of_place("tenant", Value::text("t")), ("layer", Value::text("mine")), ("topics", number(1))],
            "layer",
            "expected operator or tenant",
        ),
        (
            vec![of_place("tenant", Value::text("t")), ("namespace", Value::text("t/n")), ("topics", number(1))],
            "tenant",
            "and not more",
        ),
        (vec![("topics", number(1))], "tenant", "Set one of cluster, tenant"),
    ] {
        let request =
            p::validate_resource_config::Request { type_name: "meridian_quota".into(), config: object(&pairs) };
        let told = provider.validate_resource_config(request).await.expect("answered").into_inner().diagnostics;
        assert_eq!(told.len(), 1, "{told:?}");
        let step = &told[0].attribute.as_ref().unwrap_or_else(|| panic!("{told:?}")).steps[0];
        assert_eq!(step.selector, Some(Selector::AttributeName(at.into())), "{told:?}");
        assert!(told[0].detail.contains(says), "{says}: {told:?}");
    }
    let nothing = object(&[("tenant", Value::text("t"))]);
    let request = p::validate_resource_config::Request { type_name: "meridian_quota".into(), config: nothing };
    let told = provider.validate_resource_config(request).await.expect("answered").into_inner().diagnostics;
    assert!(told[0].detail.contains("leave the resource out"), "{told:?}");
    // What is not known yet may be any.
    let unknown = object(&[("cluster", Value::Unknown), ("topics", Value::Unknown), ("layer", Value::Unknown)]);
    let request = p::validate_resource_config::Request { type_name: "meridian_quota".into(), config: unknown };
    let told = provider.validate_resource_config(request).await.expect("answered").into_inner().diagnostics;
    assert_eq!(told, []);
}

#[tokio::test]
async fn a_plan_fills_in_defaults_and_says_what_is_not_known() {
    let (_plugin, mut provider) = provider().await;
    let rate = Value::Map(BTreeMap::from([("dispatch_throttling_rate_in_msg".to_owned(), Value::Number(9.into()))]));
    let config = object(&[("tenant", Value::text("t")), ("name", Value::text("n")), ("dispatch_rate", rate)]);
    let request = p::plan_resource_change::Request {
        type_name: "meridian_namespace".into(),
        prior_state: Some(p::DynamicValue { msgpack: Value::Null.pack(), json: Vec::new() }),
        proposed_new_state: config.clone(),
        config,
        prior_private: Vec::new(),
    };
    let plan = provider.plan_resource_change(request).await.expect("answered").into_inner();
    assert_eq!(plan.diagnostics, []);
    let planned = unpacked(plan.planned_state.as_ref());
    assert_eq!((&planned["id"], &planned["bundles"]), (&Value::text("t/n"), &Value::Unknown));
    assert_eq!((&planned["message_ttl"], &planned["offload_threshold"]), (&Value::Null, &Value::Number((-1).into())));
    let Value::Map(rate) = &planned["dispatch_rate"] else { panic!("{planned:?}") };
    assert_eq!(rate["rate_period_in_second"], Value::Number(1.into()));
}

#[tokio::test]
async fn bad_messages_are_diagnostics_and_never_the_end() {
    let (mut plugin, mut provider) = provider().await;
    for bytes in [vec![], vec![0xc1], vec![0xdf, 0xff, 0xff, 0xff, 0xff], vec![0x91; 200]] {
        let config = Some(p::DynamicValue { msgpack: bytes, json: Vec::new() });
        for type_name in ["meridian_topic", "meridian_nothing", ""] {
            let request = p::validate_resource_config::Request { type_name: type_name.into(), config: config.clone() };
            provider.validate_resource_config(request).await.expect("answered");
        }
    }
    let (type_name, id) = ("meridian_namespace".to_owned(), "no namespace".to_owned());
    let request = p::import_resource_state::Request { type_name, id };
    let told = provider.import_resource_state(request).await.expect("answered").into_inner().diagnostics;
    assert!(told[0].detail.contains("expected TENANT/NAMESPACE"), "{told:?}");
    let request = p::read_resource::Request {
        type_name: "meridian_tenant".into(),
        current_state: object(&[("name", Value::text("t"))]),
        private: Vec::new(),
    };
    let told = provider.read_resource(request).await.expect("answered").into_inner().diagnostics;
    assert!(told[0].detail.contains("MERIDIAN_URL"), "which region is not known: {told:?}");
    assert!(plugin.0.try_wait().expect("asked").is_none(), "it runs on");
}

#[tokio::test]
async fn nobody_else_is_let_in() {
    let client = identity();
    let mut plugin = start(&client, "6");
    let (socket, server) = handshake(&mut plugin).await;
    let answers = async |who: &Identity| match connect(&socket, &server, who).await {
        Err(_) => false,
        Ok(channel) => {
            let mut provider = ProviderClient::new(channel);
            let asked = provider.get_metadata(p::get_metadata::Request {});
            tokio::time::timeout(WITHIN, asked).await.expect("in time").is_ok()
        }
    };
    let stranger = identity();
    assert!(!answers(&stranger).await, "a certificate that was not handed over");
    let pretender = Identity { pem: String::new(), certificate: client.certificate.clone(), key: stranger.key };
    assert!(!answers(&pretender).await, "the right certificate without its key");
    assert!(answers(&client).await, "who started it");
}

#[test]
fn started_by_hand_or_by_an_old_terraform_it_says_what_it_is() {
    let by_hand = Command::new(PROGRAM).env_remove("TF_PLUGIN_MAGIC_COOKIE").output().expect("it ends");
    assert!(!by_hand.status.success() && by_hand.stdout.is_empty());
    assert!(String::from_utf8_lossy(&by_hand.stderr).contains("terraform starts it"));
    let mut old = start(&identity(), "4,5");
    assert!(!old.0.wait().expect("it ends").success());
    let told = BufReader::new(old.0.stderr.take().expect("a pipe")).lines().next().expect("a line").expect("text");
    assert!(told.contains("this provider speaks 6"), "{told}");
}
