//! Where data is to be offloaded to: kept for a later tier of storage, checked and shown as tools expect it.
//!
//! Failure: 412 for a driver that there is not, 400 for a body of another kind.
//! Must never know: how data is offloaded.

use crate::error::AdminError;
use serde_json::{Map, Value, json};

/// Drivers that tools may name.
const DRIVERS: [&str; 6] = ["S3", "aws-s3", "google-cloud-storage", "filesystem", "azureblob", "aliyun-oss"];

/// Fields that there are, with the value that is shown for one that was not given.
fn defaults() -> Map<String, Value> {
    let known = json!({
        "offloadersDirectory": "./offloaders",
        "managedLedgerOffloadDriver": null,
        "managedLedgerOffloadMaxThreads": 2,
        "managedLedgerOffloadReadThreads": null,
        "managedLedgerOffloadPrefetchRounds": 1,
        "managedLedgerOffloadThresholdInBytes": null,
        "managedLedgerOffloadThresholdInSeconds": null,
        "managedLedgerOffloadDeletionLagInMillis": null,
        "managedLedgerOffloadedReadPriority": null,
        "managedLedgerExtraConfigurations": {},
        "managedLedgerOffloadBucket": null,
        "managedLedgerOffloadRegion": null,
        "managedLedgerOffloadServiceEndpoint": null,
        "managedLedgerOffloadMaxBlockSizeInBytes": null,
        "managedLedgerOffloadReadBufferSizeInBytes": null,
        "s3ManagedLedgerOffloadRegion": null,
        "s3ManagedLedgerOffloadBucket": null,
        "s3ManagedLedgerOffloadServiceEndpoint": null,
        "s3ManagedLedgerOffloadMaxBlockSizeInBytes": 67_108_864,
        "s3ManagedLedgerOffloadReadBufferSizeInBytes": 1_048_576,
        "s3ManagedLedgerOffloadRole": null,
        "s3ManagedLedgerOffloadRoleSessionName": "pulsar-s3-offload",
        "gcsManagedLedgerOffloadRegion": null,
        "gcsManagedLedgerOffloadBucket": null,
        "gcsManagedLedgerOffloadMaxBlockSizeInBytes": 134_217_728,
        "gcsManagedLedgerOffloadReadBufferSizeInBytes": 1_048_576,
        "gcsManagedLedgerOffloadServiceAccountKeyFile": null,
        "fileSystemProfilePath": null,
        "fileSystemURI": null,
    });
    match known {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

/// Credentials, which would be shown to everybody who may read policies.
const SECRETS: [&str; 2] = ["s3ManagedLedgerOffloadCredentialId", "s3ManagedLedgerOffloadCredentialSecret"];

/// What a body asks for, without fields that there are not.
pub fn checked(body: &Value) -> Result<Value, AdminError> {
    let fields = match body {
        Value::Null => {
            return Err(AdminError::invalid("The offloadPolicies must be specified for namespace offload."));
        }
        Value::Object(fields) => fields,
        other => {
            return Err(AdminError::bad_request(format!("offloadPolicies: {other}: expected an object")));
        }
    };
    let driver = fields.get("managedLedgerOffloadDriver").and_then(Value::as_str).unwrap_or_default();
    if !DRIVERS.iter().any(|known| known.eq_ignore_ascii_case(driver)) {
        let text = format!("The driver is not supported, support value: {}", DRIVERS.join(","));
        return Err(AdminError::invalid(text));
    }
    if let Some(secret) = SECRETS.iter().find(|name| fields.get(**name).is_some_and(|value| !value.is_null())) {
        return Err(AdminError::invalid(format!("{secret}: credentials are not kept in policies, which are shown")));
    }
    let known = defaults();
    let given = fields.iter().filter(|(name, value)| known.contains_key(*name) && !value.is_null());
    let mut kept = Map::new();
    for (name, value) in given {
        let fits = match known[name] {
            Value::Number(_) => value.is_number(),
            Value::Object(_) => value.is_object(),
            _ => value.is_string() || value.is_number(),
        };
        if !fits {
            return Err(AdminError::bad_request(format!("offloadPolicies.{name}: {value} is of another kind")));
        }
        kept.insert(name.clone(), value.clone());
    }
    Ok(Value::Object(kept))
}

/// As it is shown: completed.
pub fn shown(stored: &Value) -> Value {
    let mut shown = defaults();
    shown.extend(stored.as_object().cloned().unwrap_or_default());
    let driver = shown["managedLedgerOffloadDriver"].as_str().unwrap_or_default().to_owned();
    let is = |names: &[&str]| names.iter().any(|name| name.eq_ignore_ascii_case(&driver));
    shown.insert("s3Driver".to_owned(), Value::from(is(&["S3", "aws-s3"])));
    shown.insert("gcsDriver".to_owned(), Value::from(is(&["google-cloud-storage"])));
    shown.insert("fileSystemDriver".to_owned(), Value::from(is(&["filesystem"])));
    Value::Object(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_kept_and_completed() {
        let body = json!({ "managedLedgerOffloadDriver": "aws-s3", "s3ManagedLedgerOffloadBucket": "b", "other": 1 });
        let kept = checked(&body).unwrap();
        assert_eq!(kept, json!({ "managedLedgerOffloadDriver": "aws-s3", "s3ManagedLedgerOffloadBucket": "b" }));
        let shown = shown(&kept);
        assert_eq!((&shown["s3Driver"], &shown["managedLedgerOffloadMaxThreads"]), (&json!(true), &json!(2)));
        let secret = json!({ "managedLedgerOffloadDriver": "aws-s3", "s3ManagedLedgerOffloadCredentialSecret": "x" });
        for bad in [secret, json!({}), json!({ "managedLedgerOffloadDriver": "x" }), json!(7), Value::Null] {
            assert!(checked(&bad).is_err(), "{bad}");
        }
    }
}
