//! What the provider does with every resource, whatever it is.

use crate::api::{Api, ApiError};
use crate::attribute::{Attribute, Set};
use crate::told::Told;
use crate::value::Value;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;
use tokio::time::Instant;

/// Values of a resource by attribute.
pub type Values = BTreeMap<String, Value>;
/// A future of a resource's.
pub type Work<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How long what was written may take to read back.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(20);
/// Pause between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What a plan is made from.
pub struct Planning<'a> {
    /// The region, if the provider is configured.
    pub api: Option<&'a Api>,
    /// What was written.
    pub config: &'a Values,
    /// What is there.
    pub prior: Option<&'a Values>,
    /// What is to be; may be changed.
    pub planned: &'a mut Values,
}

/// A kind of resource.
pub trait Resource: Send + Sync {
    /// Its type in Terraform.
    fn type_name(&self) -> &'static str;

    /// What it is.
    fn about(&self) -> &'static str;

    /// Its attributes; `id` is not among them.
    fn attributes(&self) -> &[Attribute];

    /// The id, once the names that it is made of are known.
    fn id(&self, values: &Values) -> Option<String>;

    /// The names in an id that is imported.
    ///
    /// # Errors
    /// It is none.
    fn names(&self, id: &str) -> Result<Values, Told>;

    /// What is wrong with a configuration, as far as it is known.
    fn check(&self, _config: &Values) -> Vec<Told> {
        Vec::new()
    }

    /// What a plan has to add; attributes that need another object, and what is to be told.
    fn plan<'a>(&'a self, _planning: Planning<'a>) -> Work<'a, (Vec<String>, Vec<Told>)> {
        Box::pin(async { Default::default() })
    }

    /// An attribute that is set to what holds without it.
    fn is_unset(&self, _name: &str, _value: &Value) -> bool {
        false
    }

    /// What the region has, without what it does not keep; `None` = it is not there.
    fn read<'a>(&'a self, api: &'a Api, values: &'a Values) -> Work<'a, Result<Option<Values>, Told>>;

    /// Makes it.
    fn create<'a>(&'a self, api: &'a Api, planned: &'a Values) -> Work<'a, Result<Vec<Told>, Told>>;

    /// Changes it.
    fn update<'a>(&'a self, api: &'a Api, prior: &'a Values, planned: &'a Values) -> Work<'a, Result<Vec<Told>, Told>>;

    /// Its end leaves what it describes where it is.
    fn stays(&self) -> bool {
        false
    }

    /// Deletes it.
    fn delete<'a>(&'a self, api: &'a Api, prior: &'a Values) -> Work<'a, Result<Vec<Told>, Told>>;
}

/// What an API error tells.
pub fn told(error: &ApiError) -> Told {
    match error {
        ApiError::Refused { reason, .. } => Told::error(first_line(reason), error.to_string()),
        ApiError::Unreachable { .. } => Told::error("The region can't be asked", error.to_string()),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("refused").chars().take(200).collect()
}

/// A text among values.
pub fn text<'a>(values: &'a Values, name: &str) -> &'a str {
    values.get(name).and_then(Value::as_text).unwrap_or_default()
}

/// A known text among values.
pub fn known<'a>(values: &'a Values, name: &str) -> Option<&'a str> {
    values.get(name).and_then(Value::as_text).filter(|text| !text.is_empty())
}

/// The state after a look at the region: what says the same stays in the words in which it was given.
pub fn seen(resource: &dyn Resource, current: &Values, region: &Values) -> Values {
    let mut state = Values::new();
    for attribute in resource.attributes() {
        let before = current.get(&attribute.name).cloned().unwrap_or_default();
        let value = match region.get(&attribute.name) {
            None => before,
            Some(found) if agrees(resource, attribute, &before, found) => before,
            Some(found) => found.clone(),
        };
        state.insert(attribute.name.clone(), value);
    }
    state.insert("id".to_owned(), resource.id(&state).map_or(Value::Null, Value::Text));
    state
}

fn agrees(resource: &dyn Resource, attribute: &Attribute, given: &Value, found: &Value) -> bool {
    let known = *given != Value::Unknown;
    known
        && (attribute.same(given, found)
            || (found.is_null() && !given.is_null() && resource.is_unset(&attribute.name, given)))
}

/// Looks until the region has what was planned (T1); answers the state then.
///
/// # Errors
/// It can't be read, or it does not become what was planned.
pub async fn in_force(resource: &dyn Resource, api: &Api, planned: &Values) -> Result<Values, Told> {
    let until = Instant::now() + IN_FORCE_WITHIN;
    loop {
        let found = resource.read(api, planned).await?;
        let off = match &found {
            None => Some(Told::error("It was made but is not there", "Somebody else may have deleted it meanwhile.")),
            Some(region) => differs(resource, planned, region),
        };
        let Some(off) = off else {
            return Ok(seen(resource, planned, &found.unwrap_or_default()));
        };
        if Instant::now() >= until {
            return Err(off);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

fn differs(resource: &dyn Resource, planned: &Values, region: &Values) -> Option<Told> {
    let off = resource.attributes().iter().find(|attribute| {
        let planned = planned.get(&attribute.name).unwrap_or(&Value::Null);
        let of_region = *planned == Value::Unknown || (planned.is_null() && attribute.set == Set::OrRegion);
        match region.get(&attribute.name) {
            Some(found) if !of_region => !agrees(resource, attribute, planned, found),
            _ => false,
        }
    })?;
    let shown = |values: &Values| values.get(&off.name).map(|value| value.json().to_string()).unwrap_or_default();
    let (planned, found) = match off.sensitive {
        true => ("(sensitive)".to_owned(), "(sensitive)".to_owned()),
        false => (shown(planned), shown(region)),
    };
    let detail = format!("{} was set to {planned} and reads {found} after {IN_FORCE_WITHIN:?}.", off.name);
    Some(Told::error("Not in force in time", detail).at(&[&off.name]))
}

/// Waits until it is gone.
///
/// # Errors
/// It is still there.
pub async fn gone(resource: &dyn Resource, api: &Api, prior: &Values) -> Result<(), Told> {
    let until = Instant::now() + IN_FORCE_WITHIN;
    if resource.stays() {
        return Ok(());
    }
    while resource.read(api, prior).await?.is_some() {
        if Instant::now() >= until {
            return Err(Told::error("It was deleted but is still there", "Somebody may have made it anew meanwhile."));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Ok(())
}
