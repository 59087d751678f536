//! Failover groups: namespaces that are active in one region together, and are switched together.

use crate::api::{Api, encoded};
use crate::attribute::{Attribute, Kind, Set};
use crate::resource::{Resource, Values, Work, known, text, told};
use crate::told::Told;
use crate::value::Value;
use hyper::Method;
use meridian_types::NamespaceName;
use serde_json::json;

/// A group.
pub struct FailoverGroup {
    attributes: Vec<Attribute>,
}

const PATH: &str = "/admin/v2/meridian/failover";

impl FailoverGroup {
    /// The kind.
    pub fn new() -> Self {
        let attributes = vec![
            Attribute::new("name", Kind::Text, "What it is called; the region does not keep it.").naming(),
            Attribute::new("namespaces", Kind::Texts, "Its namespaces, each TENANT/NAME.").set_by(Set::Required),
            Attribute::new("active", Kind::Text, "The active region. Another one is a planned switch.")
                .set_by(Set::Required),
        ];
        Self { attributes }
    }

    fn namespaces(values: &Values) -> Vec<String> {
        match values.get("namespaces") {
            Some(Value::List(names)) => names.iter().filter_map(|name| name.as_text().map(str::to_owned)).collect(),
            _ => Vec::new(),
        }
    }

    /// Gives every namespace the region: the first one it has, or by a planned switch.
    async fn set(&self, api: &Api, values: &Values) -> Result<Vec<Told>, Told> {
        let to = text(values, "active");
        for namespace in Self::namespaces(values) {
            let path = format!("{PATH}/{namespace}");
            let failed = |error: &_| {
                let refused = told(error);
                Told { detail: format!("{namespace}: {}", refused.detail), ..refused }.at(&["active"])
            };
            match api.get(&path).await.map_err(|error| failed(&error))? {
                Some(found) if found["active"] == to => {}
                Some(_) => {
                    let switched = api.call(Method::POST, &format!("{path}/switch"), Some(&json!({ "to": to }))).await;
                    switched.map_err(|error| failed(&error))?;
                }
                None => {
                    let made = api.call(Method::PUT, &path, Some(&json!({ "active": to }))).await;
                    made.map_err(|error| failed(&error))?;
                }
            }
        }
        Ok(Vec::new())
    }
}

impl Resource for FailoverGroup {
    fn type_name(&self) -> &'static str {
        "meridian_failover_group"
    }

    fn about(&self) -> &'static str {
        "Namespaces with one active region. Destroying it leaves the namespaces active where they are."
    }

    fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }

    fn id(&self, values: &Values) -> Option<String> {
        known(values, "name").map(str::to_owned)
    }

    fn names(&self, id: &str) -> Result<Values, Told> {
        let form = "NAME=TENANT/NAMESPACE,TENANT/NAMESPACE…";
        let bad = || Told::error("No such id can be", format!("\"{id}\": expected {form}."));
        let (name, namespaces) = id.split_once('=').ok_or_else(bad)?;
        let namespaces = Value::List(namespaces.split(',').map(Value::text).collect());
        Ok(Values::from([("name".to_owned(), Value::text(name)), ("namespaces".to_owned(), namespaces)]))
    }

    fn check(&self, config: &Values) -> Vec<Told> {
        let bad = Self::namespaces(config).into_iter().find(|name| NamespaceName::parse(name).is_err());
        let told = bad.map(|name| {
            let detail = format!("namespaces holds \"{name}\", expected TENANT/NAMESPACE.");
            Told::error("No such namespace can be", detail).at(&["namespaces"])
        });
        told.into_iter().collect()
    }

    fn read<'a>(&'a self, api: &'a Api, values: &'a Values) -> Work<'a, Result<Option<Values>, Told>> {
        Box::pin(async move {
            let (wanted, mut there, mut active) = (text(values, "active"), Vec::new(), None);
            for namespace in Self::namespaces(values) {
                let path = format!("/admin/v2/meridian/export?namespace={}", encoded(&namespace));
                let found = api.get(&path).await.map_err(|error| told(&error))?;
                let Some(region) = found.as_ref().and_then(|found| found["failover"]["active"].as_str()) else {
                    continue;
                };
                there.push(Value::text(namespace));
                // One that is elsewhere is what has to be seen.
                if active.is_none() || (active.as_deref() == Some(wanted) && region != wanted) {
                    active = Some(region.to_owned());
                }
            }
            let Some(active) = active else { return Ok(None) };
            let region = [("namespaces".to_owned(), Value::List(there)), ("active".to_owned(), Value::text(active))];
            Ok(Some(Values::from(region)))
        })
    }

    fn create<'a>(&'a self, api: &'a Api, planned: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(self.set(api, planned))
    }

    fn update<'a>(&'a self, api: &'a Api, _: &'a Values, planned: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(self.set(api, planned))
    }

    fn stays(&self) -> bool {
        true
    }

    fn delete<'a>(&'a self, _: &'a Api, prior: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(async {
            let detail = format!("{} stay active where they are.", Self::namespaces(prior).join(", "));
            Ok(vec![Told::error("A failover group is forgotten, not undone", detail).into_warning()])
        })
    }
}
