//! A broker with the API in front, called without sockets.

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use meridian_admin::{AdminState, LiveSettings, router};
use meridian_broker::{Access, BrokerConfig, BrokerParts, BrokerService, CheckIntervals, StorageFactory};
use meridian_door::{AccessRules, Door, DoorConfig};
use meridian_identity::{Identity, IdentityConfig};
use meridian_managed_ledger::testing::TestRegion;
use meridian_policy::{BrokerDefaults, ClusterData, InactiveTopics};
use meridian_registry::Registry;
use meridian_settings::{Key, Settings};
use serde_json::Value;
use std::sync::Arc;
use tower::ServiceExt;

pub struct Region {
    pub router: Router,
    pub service: Arc<BrokerService>,
}

/// Topics of a test stay, however long it takes.
fn defaults(max_producers: u32) -> BrokerDefaults {
    let inactive_topics = InactiveTopics { delete_while_inactive: false, ..InactiveTopics::default() };
    BrokerDefaults { max_producers, inactive_topics, ..BrokerDefaults::default() }
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub body: String,
    pub content_type: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }

    /// The text of a refusal, which is JSON with a reason and nothing else.
    pub fn reason(&self) -> String {
        assert_eq!(self.content_type, "application/json", "{self:?}");
        let body = self.json();
        let fields = body.as_object().unwrap_or_else(|| panic!("{self:?}"));
        assert_eq!(fields.len(), 1, "{self:?}");
        let reason = fields["reason"].as_str().unwrap_or_else(|| panic!("{self:?}"));
        assert!(!reason.trim().is_empty(), "{self:?}");
        reason.to_owned()
    }
}

impl Region {
    pub async fn start() -> Self {
        Self::with(None, DoorConfig::default()).await
    }

    /// Every caller has the role `nobody`, which nothing was granted to.
    pub async fn of_nobody() -> Self {
        let config = IdentityConfig {
            providers: vec!["tls".to_owned()],
            anonymous_role: Some("nobody".to_owned()),
            ..IdentityConfig::default()
        };
        let rules = AccessRules { super_users: ["root".to_owned()].into(), wildcards: false };
        Self::with(Some(config), DoorConfig { authorization: true, rules, ..DoorConfig::default() }).await
    }

    /// Who shows no certificate is nobody at all.
    pub async fn closed() -> Self {
        let config = IdentityConfig { providers: vec!["tls".to_owned()], ..IdentityConfig::default() };
        Self::with(Some(config), DoorConfig { authorization: true, ..DoorConfig::default() }).await
    }

    async fn with(identity: Option<IdentityConfig>, door: DoorConfig) -> Self {
        let storage = TestRegion::default();
        let store = storage.metadata.clone();
        let registry = Registry::open(store.clone(), defaults(0)).await.expect("as the test made it");
        registry.bootstrap(&ClusterData::default(), 4).await.expect("as the test made it");
        let factory = Arc::new(StorageFactory::new(storage.broker(), CheckIntervals::default()));
        let identity = identity.map(|config| Arc::new(Identity::new(&config).expect("as the test made it")));
        let access = Access { identity, door: Arc::new(Door::new(door, registry.clone())) };
        let config = BrokerConfig::default();
        let parts = BrokerParts { config, store, registry: registry.clone(), factory, access, linker: None };
        let service = BrokerService::new(parts).await.expect("as the test made it");
        service.start();
        // What a process does with changed settings, in small.
        let apply = move |settings: &Settings| {
            let max_producers = settings.count(Key::MaxProducersPerTopic) as u32;
            registry.set_defaults(defaults(max_producers));
        };
        let live = LiveSettings::new(Settings::default(), Box::new(apply));
        let state = AdminState::with_live(service.clone(), live, Default::default());
        Self { router: router(state), service }
    }

    pub async fn call(&self, method: &str, path: &str, body: &str) -> Answer {
        let request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).expect("as the test made it"))
            .uri(path)
            .header("content-type", "application/json")
            .body(Body::from(body.to_owned()))
            .expect("as the test made it");
        let response = self.router.clone().oneshot(request).await.expect("as the test made it");
        let (head, body) = response.into_parts();
        let content_type =
            head.headers.get("content-type").map(|value| value.to_str().expect("as the test made it").to_owned());
        let body = body.collect().await.expect("as the test made it").to_bytes();
        Answer {
            status: head.status,
            body: String::from_utf8_lossy(&body).into_owned(),
            content_type: content_type.unwrap_or_default(),
        }
    }

    pub async fn expect(&self, method: &str, path: &str, body: &str, status: u16) -> Answer {
        let answer = self.call(method, path, body).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {path} {body}: {answer:?}");
        answer
    }

    pub async fn get(&self, path: &str) -> Value {
        self.expect("GET", path, "", 200).await.json()
    }
}
