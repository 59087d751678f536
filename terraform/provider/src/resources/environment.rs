//! Environments: a whole declarative document with its owner, applied as one.
//!
//! Invariants: what a plan says would change is what the region says; an apply is refused if somebody else applied in
//! between; what the document does not name any more goes with `prune`.

use crate::api::{Api, ApiError, encoded};
use crate::attribute::{Attribute, Kind, Set};
use crate::resource::{Planning, Resource, Values, Work, known, text, told};
use crate::told::Told;
use crate::value::Value;
use hyper::Method;
use meridian_declare::{Document, read};
use serde_json::{Value as Json, json};
use std::time::Duration;

/// How long an apply may go on after the region said that it takes longer.
const TRIES: usize = 1_200;
/// Pause between two looks whether it has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Most lines of changes that are kept.
const MAX_LINES: usize = 200;

/// An environment.
pub struct Environment {
    attributes: Vec<Attribute>,
}

impl Environment {
    /// The kind.
    pub fn new() -> Self {
        let flag =
            |name: &str, on: bool, about: &str| Attribute::new(name, Kind::Flag, about).set_by(Set::Default(json!(on)));
        let attributes = vec![
            Attribute::new("owner", Kind::Text, "Whose document it is; the name of the environment.").naming(),
            Attribute::new("document", Kind::Text, "The document, YAML or JSON (yamlencode, jsonencode, file).")
                .set_by(Set::Required),
            flag("prune", true, "Delete what the document does not name any more."),
            flag("switch", false, "Switch namespaces to the region that the document names as active."),
            flag("force_destroy", false, "Delete also what is in use."),
            Attribute::new("revision", Kind::Number, "Counts what was applied.").set_by(Set::Computed),
            Attribute::new("changes", Kind::Lines, "What the last plan found to do, object by object.")
                .set_by(Set::Computed),
        ];
        Self { attributes }
    }

    /// The document with its owner, as it is sent.
    fn document(values: &Values) -> Result<Json, Vec<Told>> {
        let at = |problem: String| Told::error("The document can't be", problem).at(&["document"]);
        let mut document =
            read(text(values, "document").as_bytes()).map_err(|problem| vec![at(problem.to_string())])?;
        if let (Some(fields), Some(owner)) = (document.as_object_mut(), known(values, "owner")) {
            let said = fields.insert("owner".to_owned(), json!(owner));
            if let Some(said) = said.filter(|said| *said != json!(owner)) {
                return Err(vec![at(format!("owner: is {said}, and the resource's owner is \"{owner}\""))]);
            }
        }
        match Document::check(&document) {
            Ok(_) => Ok(document),
            Err(problems) => Err(problems.iter().map(|problem| at(problem.to_string())).collect()),
        }
    }

    fn path(values: &Values, dry_run: bool, revision: Option<u64>) -> String {
        let is = |name: &str| values.get(name).is_some_and(Value::is_true);
        let (prune, switch, force) = (is("prune"), is("switch"), is("force_destroy"));
        let revision = revision.map(|revision| format!("&revision={revision}")).unwrap_or_default();
        format!("/admin/v2/meridian/apply?dryRun={dry_run}&prune={prune}&switch={switch}&force={force}{revision}")
    }

    async fn ask(api: &Api, values: &Values, dry_run: bool, revision: Option<u64>) -> Result<Json, Told> {
        let document = Self::document(values).map_err(|mut all| all.swap_remove(0))?;
        let answer = api.call(Method::PUT, &Self::path(values, dry_run, revision), Some(&document)).await;
        answer.map(|answer| answer.body).map_err(|error| match &error {
            ApiError::Refused { status: 412, reason, .. } => {
                Told::error("The document can't be applied", reason.replace("; ", "\n")).at(&["document"])
            }
            error => told(error),
        })
    }

    /// Lines of what a plan found to do.
    fn lines(answer: &Json) -> Vec<String> {
        let line = |change: &Json| {
            let fields: Vec<_> =
                change["fields"].as_array().into_iter().flatten().filter_map(|field| field["field"].as_str()).collect();
            let text = |name: &str| change[name].as_str().unwrap_or_default().to_owned();
            let more = if text("action") == "update" { format!(": {}", fields.join(", ")) } else { String::new() };
            format!("{} {}{more}", text("action"), text("object"))
        };
        let all = answer["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut lines: Vec<_> = all.iter().take(MAX_LINES).map(line).collect();
        if all.len() > MAX_LINES {
            lines.push(format!("and {} more", all.len() - MAX_LINES));
        }
        lines
    }

    async fn apply(api: &Api, values: &Values, revision: Option<u64>) -> Result<(), Told> {
        let mut answer = Self::ask(api, values, false, revision).await?;
        let path = format!("/admin/v2/meridian/applied/{}", encoded(text(values, "owner")));
        for _ in 0..TRIES {
            match answer["state"].as_str() {
                Some("applying") => tokio::time::sleep(LOOK_AGAIN).await,
                Some("applied") => return Ok(()),
                _ => break,
            }
            answer = api.get(&path).await.map_err(|error| told(&error))?.unwrap_or_default();
        }
        Err(Told::error("The apply did not end well", "Apply again: it goes on from where it came to."))
    }
}

fn revision_of(values: &Values) -> Option<u64> {
    values.get("revision").and_then(|value| value.json().as_u64())
}

fn lines_value(lines: &[String]) -> Value {
    Value::List(lines.iter().map(Value::text).collect())
}

impl Resource for Environment {
    fn type_name(&self) -> &'static str {
        "meridian_environment"
    }

    fn about(&self) -> &'static str {
        "A whole environment as one declarative document, applied in order by one applier at a time."
    }

    fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }

    fn id(&self, values: &Values) -> Option<String> {
        known(values, "owner").map(str::to_owned)
    }

    fn names(&self, id: &str) -> Result<Values, Told> {
        Ok(Values::from([("owner".to_owned(), Value::text(id))]))
    }

    fn check(&self, config: &Values) -> Vec<Told> {
        match known(config, "document") {
            Some(_) => Self::document(config).err().unwrap_or_default(),
            None => Vec::new(),
        }
    }

    fn plan<'a>(&'a self, planning: Planning<'a>) -> Work<'a, (Vec<String>, Vec<Told>)> {
        Box::pin(async move {
            let planned = planning.planned;
            let is_known = ["document", "owner"].iter().all(|name| known(planned, name).is_some());
            let (Some(api), true) = (planning.api, is_known) else {
                planned.insert("revision".to_owned(), Value::Unknown);
                planned.insert("changes".to_owned(), Value::Unknown);
                return Default::default();
            };
            let said = |values: &Values| Self::document(values).ok();
            if let Some(prior) = planning.prior
                && said(prior).is_some_and(|before| said(planned).as_ref() == Some(&before))
            {
                // The same in other words is no change.
                planned.insert("document".to_owned(), prior.get("document").cloned().unwrap_or_default());
            }
            let found = match Self::ask(api, planned, true, None).await {
                Ok(found) => found,
                Err(told) => return (Vec::new(), vec![told]),
            };
            let lines = Self::lines(&found);
            let same_document = planning.prior.is_some_and(|prior| prior.get("document") == planned.get("document"));
            let settled = lines.is_empty() && same_document;
            let revision = planning.prior.and_then(|prior| prior.get("revision")).cloned().filter(|_| settled);
            planned.insert("revision".to_owned(), revision.unwrap_or(Value::Unknown));
            planned.insert("changes".to_owned(), lines_value(&lines));
            Default::default()
        })
    }

    fn read<'a>(&'a self, api: &'a Api, values: &'a Values) -> Work<'a, Result<Option<Values>, Told>> {
        Box::pin(async move {
            let path = format!("/admin/v2/meridian/applied/{}", encoded(text(values, "owner")));
            let Some(kept) = api.get(&path).await.map_err(|error| told(&error))? else { return Ok(None) };
            let mut region = Values::from([("revision".to_owned(), Value::of_json(&kept["revision"]))]);
            let there = kept["document"].to_string();
            let mut whole = values.clone();
            if known(values, "document").is_none() {
                whole.insert("document".to_owned(), Value::text(there.clone()));
            }
            let given = Self::document(&whole).unwrap_or_default();
            let without = |mut document: Json| {
                if let Some(regions) = document.get_mut("regions").and_then(Json::as_object_mut) {
                    regions.values_mut().filter_map(Json::as_object_mut).for_each(|region| {
                        region.remove("authenticationParameters");
                    });
                }
                document
            };
            let same = without(given) == kept["document"];
            let document = if same { text(&whole, "document").to_owned() } else { there };
            region.insert("document".to_owned(), Value::text(document.clone()));
            whole.insert("document".to_owned(), Value::text(document));
            let found = Self::ask(api, &whole, true, None).await?;
            let lines = Self::lines(&found);
            // After an apply what was planned stays said, if nothing is left of it.
            if !(lines.is_empty() && values.get("revision") == Some(&Value::Unknown)) {
                region.insert("changes".to_owned(), lines_value(&lines));
            }
            Ok(Some(region))
        })
    }

    fn create<'a>(&'a self, api: &'a Api, planned: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(async move {
            Self::apply(api, planned, Some(0)).await.map(|()| Vec::new()).map_err(|told| {
                match told.summary.contains("is in force, not 0") {
                    true => Told::error(
                        "The owner has an environment already",
                        format!("Import it: {}", text(planned, "owner")),
                    )
                    .at(&["owner"]),
                    false => told,
                }
            })
        })
    }

    fn update<'a>(&'a self, api: &'a Api, prior: &'a Values, planned: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(async move { Self::apply(api, planned, revision_of(prior)).await.map(|()| Vec::new()) })
    }

    fn delete<'a>(&'a self, api: &'a Api, prior: &'a Values) -> Work<'a, Result<Vec<Told>, Told>> {
        Box::pin(async move {
            let is = |name: &str| prior.get(name).is_some_and(Value::is_true);
            let (owner, force) = (encoded(text(prior, "owner")), is("force_destroy"));
            let path = format!("/admin/v2/meridian/applied/{owner}?prune={}&force={force}", is("prune"));
            api.delete(&path).await.map(|()| Vec::new()).map_err(|error| told(&error))
        })
    }
}
