//! Cluster entries in a document.

use super::Reading;
use crate::object::{Facet, Object, ObjectId};
use meridian_policy::ClusterData;
use meridian_policy::schema::{Absent, Field, Shape};
use serde_json::{Map, Value};

const fn text(name: &'static str) -> Field {
    Field { name, shape: Shape::Text(&[]), absent: Absent::Unset, about: "" }
}

const fn flag(name: &'static str) -> Field {
    Field { name, shape: Shape::Flag, absent: Absent::Unset, about: "" }
}

/// What can be said of a region.
pub const FIELDS: &[Field] = &[
    text("serviceUrl"),
    text("serviceUrlTls"),
    text("brokerServiceUrl"),
    text("brokerServiceUrlTls"),
    text("proxyServiceUrl"),
    text("proxyProtocol"),
    text("authenticationPlugin"),
    text("authenticationParameters"),
    Field { name: "peerClusterNames", shape: Shape::Texts(&[]), absent: Absent::Unset, about: "" },
    flag("brokerClientTlsEnabled"),
    flag("tlsAllowInsecureConnection"),
    text("brokerClientTrustCertsFilePath"),
    text("brokerClientKeyFilePath"),
    text("brokerClientCertificateFilePath"),
    text("listenerName"),
    text("regionLinkUrl"),
];

/// Reads one.
pub(super) fn read(reading: &mut Reading, path: &str, name: &str, value: &Value) {
    if let Err(error) = ClusterData::check_name(name) {
        reading.problems.tell(path, error.to_string());
    }
    let empty = Value::Object(Map::new());
    let value = if value.is_null() { &empty } else { value };
    let Some(fields) = reading.fitting(path, &Shape::Record(FIELDS), value) else { return };
    let checked = serde_json::from_value::<ClusterData>(fields.clone()).map_err(|error| error.to_string());
    if let Err(problem) = checked.and_then(|data| data.check().map_err(|error| error.to_string())) {
        reading.problems.tell(path, problem);
    }
    let mut object = Object::default();
    for field in FIELDS {
        object.set(Facet::Field(field.name), fields.get(field.name).cloned().unwrap_or_default());
    }
    reading.objects.insert(ObjectId::Region(name.to_owned()), object);
}
