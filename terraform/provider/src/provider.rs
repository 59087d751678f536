//! The protocol's service: finds the kind of resource, turns messages into values and back.
//!
//! Failure: a value or type that can't be is a diagnostic; no call ends the process.

use crate::api::{Address, Api};
use crate::attribute::{Attribute, Kind, Set};
use crate::protocol as p;
use crate::protocol::provider_server::Provider;
use crate::resource::{Planning, Resource, Values, gone, in_force, seen};
use crate::resources;
use crate::told::{Told, path};
use crate::value::Value;
use meridian_client::TlsSettings;
use parking_lot::RwLock;
use serde_json::Value as Json;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// Kinds that can be read as data sources.
const DATA_SOURCES: [&str; 6] = [
    "meridian_cluster",
    "meridian_environment",
    "meridian_namespace",
    "meridian_schema",
    "meridian_tenant",
    "meridian_topic",
];
const URL_VARIABLE: &str = "MERIDIAN_URL";
const TOKEN_VARIABLE: &str = "MERIDIAN_TOKEN";

/// The provider.
pub struct Meridian {
    kinds: BTreeMap<&'static str, Box<dyn Resource>>,
    settings: Vec<Attribute>,
    api: RwLock<Option<Arc<Api>>>,
}

impl Default for Meridian {
    fn default() -> Self {
        let settings = vec![
            Attribute::new(
                "url",
                Kind::Text,
                "Admin address of the region, http://HOST:PORT or https://…; MERIDIAN_URL.",
            ),
            Attribute::new("token", Kind::Text, "Token of an operator; MERIDIAN_TOKEN.").secret(),
            Attribute::new("trust_file", Kind::Text, "Certificates to trust (PEM), for https."),
            Attribute::new("certificate_file", Kind::Text, "Client certificate (PEM), for https."),
            Attribute::new("key_file", Kind::Text, "Its key (PEM)."),
        ];
        let kinds = resources::all().into_iter().map(|kind| (kind.type_name(), kind)).collect();
        Self { kinds, settings, api: RwLock::new(None) }
    }
}

type Answer<T> = Result<Response<T>, Status>;

fn answer<T>(response: T) -> Answer<T> {
    Ok(Response::new(response))
}

fn diagnostics(all: &[Told]) -> Vec<p::Diagnostic> {
    all.iter().map(Told::diagnostic).collect()
}

/// Values of a message; `None` = there is no object.
fn values(dynamic: Option<&p::DynamicValue>) -> Result<Option<Values>, Told> {
    let Some(dynamic) = dynamic.filter(|dynamic| !dynamic.msgpack.is_empty() || !dynamic.json.is_empty()) else {
        return Ok(None);
    };
    let unreadable = |error: String| Told::error("Terraform sent what can't be read", error);
    let value = match dynamic.msgpack.is_empty() {
        false => Value::unpack(&dynamic.msgpack).map_err(|error| unreadable(error.to_string()))?,
        true => {
            let json: Json = serde_json::from_slice(&dynamic.json).map_err(|error| unreadable(error.to_string()))?;
            Value::of_json(&json)
        }
    };
    match value {
        Value::Map(values) => Ok(Some(values)),
        _ => Ok(None),
    }
}

fn packed(values: Option<Values>) -> Option<p::DynamicValue> {
    let value = values.map_or(Value::Null, Value::Map);
    Some(p::DynamicValue { msgpack: value.pack(), json: Vec::new() })
}

/// Every attribute has a value, if it is `null`.
fn whole(kind: &dyn Resource, mut state: Values) -> Values {
    for attribute in kind.attributes() {
        state.entry(attribute.name.clone()).or_default();
    }
    state.entry("id".to_owned()).or_default();
    state.retain(|name, _| name == "id" || kind.attributes().iter().any(|attribute| attribute.name == *name));
    state
}

fn id_described() -> p::schema::Attribute {
    Attribute::new("id", Kind::Text, "The name by which it is imported.").set_by(Set::Computed).described()
}

/// The schema of a resource.
fn described(kind: &dyn Resource) -> p::Schema {
    let mut attributes: Vec<_> = kind.attributes().iter().map(Attribute::described).collect();
    attributes.push(id_described());
    block(attributes, kind.about())
}

/// The schema of a data source: names are given, everything else is read.
fn read_only(kind: &dyn Resource) -> p::Schema {
    let of_name = |attribute: &Attribute| match attribute.set {
        Set::Required if attribute.replaces => attribute.clone(),
        // The one name that has a default.
        _ if attribute.name == "domain" => attribute.clone().set_by(Set::OrRegion),
        _ => attribute.clone().set_by(Set::Computed),
    };
    let mut attributes: Vec<_> =
        kind.attributes().iter().map(|one| computed_within(of_name(one)).described()).collect();
    attributes.push(id_described());
    block(attributes, kind.about())
}

fn computed_within(mut attribute: Attribute) -> Attribute {
    if let Kind::Record(fields) = attribute.kind {
        attribute.kind =
            Kind::Record(fields.into_iter().map(|field| computed_within(field.set_by(Set::Computed))).collect());
    }
    attribute
}

fn block(attributes: Vec<p::schema::Attribute>, about: &str) -> p::Schema {
    let description_kind = p::StringKind::Plain.into();
    let block = p::schema::Block { version: 0, attributes, description: about.to_owned(), description_kind };
    p::Schema { version: 0, block: Some(block) }
}

impl Meridian {
    fn kind(&self, type_name: &str) -> Result<&dyn Resource, Told> {
        let unknown = || Told::error("No such resource", format!("{type_name} is not known to this provider."));
        self.kinds.get(type_name).map(Box::as_ref).ok_or_else(unknown)
    }

    fn configured(&self) -> Result<Arc<Api>, Told> {
        self.api.read().clone().ok_or_else(|| {
            let detail = format!("Set url in the provider's block, or {URL_VARIABLE}.");
            Told::error("The provider does not know which region to ask", detail).at(&["url"])
        })
    }

    fn capabilities() -> Option<p::ServerCapabilities> {
        Some(p::ServerCapabilities { plan_destroy: false, get_provider_schema_optional: true })
    }

    fn configure(&self, config: &Values) -> Result<(), Told> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let given = |name: &str| config.get(name).and_then(Value::as_text).filter(|text| !text.is_empty());
        // What is not known yet is asked for when a resource needs it.
        let Some(url) = given("url").map(str::to_owned).or_else(|| variable(URL_VARIABLE)) else { return Ok(()) };
        let tls = TlsSettings {
            trust_file: given("trust_file").map(PathBuf::from),
            certificate_file: given("certificate_file").map(PathBuf::from),
            key_file: given("key_file").map(PathBuf::from),
            ..TlsSettings::default()
        };
        let token = given("token").map(str::to_owned).or_else(|| variable(TOKEN_VARIABLE));
        let api = Api::new(Address { url, token, tls })
            .map_err(|problem| Told::error("No such address can be", format!("url {problem}.")).at(&["url"]))?;
        *self.api.write() = Some(Arc::new(api));
        Ok(())
    }

    async fn read(&self, request: &p::read_resource::Request) -> Result<Option<Values>, Told> {
        let kind = self.kind(&request.type_name)?;
        let Some(current) = values(request.current_state.as_ref())? else { return Ok(None) };
        let api = self.configured()?;
        let found = kind.read(&api, &current).await?;
        Ok(found.map(|region| whole(kind, seen(kind, &current, &region))))
    }

    async fn plan(
        &self,
        request: &p::plan_resource_change::Request,
    ) -> Result<p::plan_resource_change::Response, Told> {
        let kind = self.kind(&request.type_name)?;
        let prior = values(request.prior_state.as_ref())?;
        let Some(proposed) = values(request.proposed_new_state.as_ref())? else {
            return Ok(p::plan_resource_change::Response { planned_state: packed(None), ..Default::default() });
        };
        let config = values(request.config.as_ref())?.unwrap_or_default();
        let mut planned = Values::new();
        for attribute in kind.attributes() {
            let given = config.get(&attribute.name).cloned().unwrap_or_default();
            let value = match (&attribute.set, given.is_null(), &prior) {
                (Set::Computed | Set::OrRegion, true, None) => Value::Unknown,
                (Set::Computed | Set::OrRegion, true, Some(_)) => {
                    proposed.get(&attribute.name).cloned().unwrap_or_default()
                }
                _ => attribute.planned(&given),
            };
            planned.insert(attribute.name.clone(), value);
        }
        planned.insert("id".to_owned(), kind.id(&planned).map_or(Value::Unknown, Value::Text));
        let api = self.api.read().clone();
        let planning = Planning { api: api.as_deref(), config: &config, prior: prior.as_ref(), planned: &mut planned };
        let (mut replaced, told) = kind.plan(planning).await;
        if let Some(prior) = &prior {
            let other = |attribute: &&Attribute| {
                let of = |values: &Values| values.get(&attribute.name).cloned().unwrap_or_default();
                attribute.replaces && !attribute.same(&of(prior), &of(&planned))
            };
            replaced.extend(kind.attributes().iter().filter(other).map(|attribute| attribute.name.clone()));
        }
        Ok(p::plan_resource_change::Response {
            planned_state: packed(Some(planned)),
            requires_replace: replaced.into_iter().filter_map(|name| path(&[name])).collect(),
            planned_private: request.prior_private.clone(),
            diagnostics: diagnostics(&told),
        })
    }

    /// The state after it, also of what went wrong half-way.
    async fn apply(&self, request: &p::apply_resource_change::Request) -> (Option<Values>, Vec<Told>) {
        match self.try_apply(request).await {
            Ok((state, told)) => (state, told),
            Err((state, told)) => (state, vec![told]),
        }
    }

    async fn try_apply(
        &self,
        request: &p::apply_resource_change::Request,
    ) -> Result<(Option<Values>, Vec<Told>), (Option<Values>, Told)> {
        let nothing = |told: Told| (None, told);
        let kind = self.kind(&request.type_name).map_err(nothing)?;
        let prior = values(request.prior_state.as_ref()).map_err(nothing)?;
        let as_before = |told: Told| (prior.clone(), told);
        let planned = values(request.planned_state.as_ref()).map_err(as_before)?;
        let api = self.configured().map_err(as_before)?;
        let Some(planned) = planned else {
            let Some(before) = prior.as_ref() else { return Ok((None, Vec::new())) };
            let told = kind.delete(&api, before).await.map_err(as_before)?;
            gone(kind, &api, before).await.map_err(as_before)?;
            return Ok((None, told));
        };
        let told = match &prior {
            None => kind.create(&api, &planned).await,
            Some(before) => kind.update(&api, before, &planned).await,
        };
        let told = told.map_err(as_before)?;
        match in_force(kind, &api, &planned).await {
            Ok(state) => Ok((Some(whole(kind, state)), told)),
            // It is there, and what is not as planned will be seen by the next plan.
            Err(told) => {
                let mut state = seen(kind, &planned, &Values::new());
                state.values_mut().filter(|value| !value.is_known()).for_each(|value| *value = Value::Null);
                Err((Some(whole(kind, state)), told))
            }
        }
    }

    fn imported(&self, request: &p::import_resource_state::Request) -> Result<Values, Told> {
        let kind = self.kind(&request.type_name)?;
        let mut state = kind.names(&request.id)?;
        for attribute in kind.attributes() {
            if let Set::Default(default) = &attribute.set {
                state.entry(attribute.name.clone()).or_insert_with(|| attribute.value_of(Some(default)));
            }
        }
        Ok(whole(kind, state))
    }

    async fn source(&self, request: &p::read_data_source::Request) -> Result<Values, Told> {
        let kind = self.kind(&request.type_name)?;
        let config = values(request.config.as_ref())?.unwrap_or_default();
        let api = self.configured()?;
        let found = kind.read(&api, &config).await?.ok_or_else(|| {
            let id = kind.id(&config).unwrap_or_default();
            Told::error("It does not exist", format!("There is no {} {id}.", request.type_name))
        })?;
        Ok(whole(kind, seen(kind, &config, &found)))
    }

    fn upgraded(&self, request: &p::upgrade_resource_state::Request) -> Result<Values, Told> {
        let kind = self.kind(&request.type_name)?;
        let raw = request.raw_state.as_ref().map(|raw| raw.json.as_slice()).unwrap_or_default();
        let json: Json =
            serde_json::from_slice(raw).map_err(|error| Told::error("The state can't be read", error.to_string()))?;
        match Value::of_json(&json) {
            // Attributes that are not known any more are left out, new ones are not set.
            Value::Map(state) => Ok(whole(kind, state)),
            _ => Err(Told::error("The state can't be read", "It is no object.")),
        }
    }
}

#[tonic::async_trait]
impl Provider for Meridian {
    async fn get_metadata(&self, _: Request<p::get_metadata::Request>) -> Answer<p::get_metadata::Response> {
        let resources = self.kinds.keys().map(|name| p::get_metadata::Resource { type_name: (*name).to_owned() });
        let sources = DATA_SOURCES.iter().map(|name| p::get_metadata::DataSource { type_name: (*name).to_owned() });
        answer(p::get_metadata::Response {
            server_capabilities: Self::capabilities(),
            diagnostics: Vec::new(),
            data_sources: sources.collect(),
            resources: resources.collect(),
        })
    }

    async fn get_provider_schema(
        &self,
        _: Request<p::get_provider_schema::Request>,
    ) -> Answer<p::get_provider_schema::Response> {
        let resources = self.kinds.iter().map(|(name, kind)| ((*name).to_owned(), described(kind.as_ref())));
        let sources = self.kinds.iter().filter(|(name, _)| DATA_SOURCES.contains(name));
        let sources = sources.map(|(name, kind)| ((*name).to_owned(), read_only(kind.as_ref())));
        let settings = self.settings.iter().map(Attribute::described).collect();
        answer(p::get_provider_schema::Response {
            provider: Some(block(settings, "A region of Meridian.")),
            resource_schemas: resources.collect::<HashMap<_, _>>(),
            data_source_schemas: sources.collect::<HashMap<_, _>>(),
            diagnostics: Vec::new(),
            server_capabilities: Self::capabilities(),
        })
    }

    async fn validate_provider_config(
        &self,
        request: Request<p::validate_provider_config::Request>,
    ) -> Answer<p::validate_provider_config::Response> {
        let config = values(request.get_ref().config.as_ref());
        let told = match config {
            Err(told) => vec![told],
            Ok(config) => {
                let config = config.unwrap_or_default();
                let url = config.get("url").and_then(Value::as_text).map(str::to_owned);
                let checked = url.map(|url| Api::new(Address { url, token: None, tls: TlsSettings::default() }));
                let problem = checked.and_then(Result::err);
                problem
                    .map(|problem| Told::error("No such address can be", format!("url {problem}.")).at(&["url"]))
                    .into_iter()
                    .collect()
            }
        };
        answer(p::validate_provider_config::Response { diagnostics: diagnostics(&told) })
    }

    async fn validate_resource_config(
        &self,
        request: Request<p::validate_resource_config::Request>,
    ) -> Answer<p::validate_resource_config::Response> {
        let request = request.get_ref();
        let told = match (self.kind(&request.type_name), values(request.config.as_ref())) {
            (Err(told), _) | (_, Err(told)) => vec![told],
            (Ok(kind), Ok(config)) => kind.check(&config.unwrap_or_default()),
        };
        answer(p::validate_resource_config::Response { diagnostics: diagnostics(&told) })
    }

    async fn validate_data_resource_config(
        &self,
        _: Request<p::validate_data_resource_config::Request>,
    ) -> Answer<p::validate_data_resource_config::Response> {
        answer(p::validate_data_resource_config::Response::default())
    }

    async fn upgrade_resource_state(
        &self,
        request: Request<p::upgrade_resource_state::Request>,
    ) -> Answer<p::upgrade_resource_state::Response> {
        answer(match self.upgraded(request.get_ref()) {
            Ok(state) => {
                p::upgrade_resource_state::Response { upgraded_state: packed(Some(state)), diagnostics: Vec::new() }
            }
            Err(told) => {
                p::upgrade_resource_state::Response { upgraded_state: None, diagnostics: diagnostics(&[told]) }
            }
        })
    }

    async fn configure_provider(
        &self,
        request: Request<p::configure_provider::Request>,
    ) -> Answer<p::configure_provider::Response> {
        let outcome =
            values(request.get_ref().config.as_ref()).and_then(|config| self.configure(&config.unwrap_or_default()));
        let told: Vec<Told> = outcome.err().into_iter().collect();
        answer(p::configure_provider::Response { diagnostics: diagnostics(&told) })
    }

    async fn read_resource(&self, request: Request<p::read_resource::Request>) -> Answer<p::read_resource::Response> {
        let request = request.get_ref();
        let private = request.private.clone();
        answer(match self.read(request).await {
            Ok(state) => p::read_resource::Response { new_state: packed(state), diagnostics: Vec::new(), private },
            Err(told) => {
                let new_state = request.current_state.clone();
                p::read_resource::Response { new_state, diagnostics: diagnostics(&[told]), private }
            }
        })
    }

    async fn plan_resource_change(
        &self,
        request: Request<p::plan_resource_change::Request>,
    ) -> Answer<p::plan_resource_change::Response> {
        answer(self.plan(request.get_ref()).await.unwrap_or_else(|told| p::plan_resource_change::Response {
            diagnostics: diagnostics(&[told]),
            ..Default::default()
        }))
    }

    async fn apply_resource_change(
        &self,
        request: Request<p::apply_resource_change::Request>,
    ) -> Answer<p::apply_resource_change::Response> {
        let (state, told) = self.apply(request.get_ref()).await;
        let private = request.get_ref().planned_private.clone();
        answer(p::apply_resource_change::Response {
            new_state: packed(state),
            private,
            diagnostics: diagnostics(&told),
        })
    }

    async fn import_resource_state(
        &self,
        request: Request<p::import_resource_state::Request>,
    ) -> Answer<p::import_resource_state::Response> {
        answer(match self.imported(request.get_ref()) {
            Ok(state) => {
                let type_name = request.get_ref().type_name.clone();
                let one = p::import_resource_state::ImportedResource {
                    type_name,
                    state: packed(Some(state)),
                    private: Vec::new(),
                };
                p::import_resource_state::Response { imported_resources: vec![one], diagnostics: Vec::new() }
            }
            Err(told) => {
                p::import_resource_state::Response { imported_resources: Vec::new(), diagnostics: diagnostics(&[told]) }
            }
        })
    }

    async fn read_data_source(
        &self,
        request: Request<p::read_data_source::Request>,
    ) -> Answer<p::read_data_source::Response> {
        answer(match self.source(request.get_ref()).await {
            Ok(state) => p::read_data_source::Response { state: packed(Some(state)), diagnostics: Vec::new() },
            Err(told) => p::read_data_source::Response { state: None, diagnostics: diagnostics(&[told]) },
        })
    }

    async fn stop_provider(&self, _: Request<p::stop_provider::Request>) -> Answer<p::stop_provider::Response> {
        // Calls end by themselves within their limits; nothing is left half-written by waiting for them.
        answer(p::stop_provider::Response::default())
    }
}
