//! Quotas, leases and usage as they are stored, in JSON with a version: `{"v":1,…}`.
//!
//! Limits: `{"v":1,"operator":{LIMIT:VALUE,…},"tenant":{…}}`. Leases: `{"v":1,"grants":{BROKER:{"amount":…,"demand":…,
//! "until_ms":…},…}}`. Usage: `{"v":1,"messages_in":…,"bytes_in":…,"messages_out":…,"bytes_out":…,"replicated_messages":…,
//! "replicated_bytes":…,"stored_bytes_max":…}`. What a topic has stored:
//! `{"v":1,"stored_bytes":…,"backlog_bytes":…,"subscriptions":…}`.
//!
//! Invariants: the version is read before the data; one that is not known is refused, never guessed; unknown fields are
//! passed over.
//! Failure: [`MetadataError::Corrupt`] with the key.

use bytes::Bytes;
use meridian_metadata::MetadataError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const VERSION: u32 = 1;

#[derive(Serialize)]
struct Out<'a, T> {
    v: u32,
    #[serde(flatten)]
    data: &'a T,
}

#[derive(Deserialize)]
struct Versioned {
    v: u32,
}

fn corrupt(key: &str, reason: impl ToString) -> MetadataError {
    MetadataError::Corrupt(format!("{key}: {}", reason.to_string()))
}

pub(crate) fn encode<T: Serialize>(key: &str, data: &T) -> Result<Bytes, MetadataError> {
    let text = serde_json::to_vec(&Out { v: VERSION, data }).map_err(|error| corrupt(key, error))?;
    Ok(text.into())
}

pub(crate) fn decode<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, MetadataError> {
    let version: Versioned = serde_json::from_slice(value).map_err(|error| corrupt(key, error))?;
    if version.v != VERSION {
        return Err(corrupt(key, format!("version {} is not known", version.v)));
    }
    serde_json::from_slice(value).map_err(|error| corrupt(key, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Division, Grant};
    use crate::stored::Stored;
    use crate::usage::Usage;
    use meridian_policy::quota::{Limit, Quota, Quotas};

    #[test]
    fn golden_bytes() {
        let quotas = Quotas { operator: Quota([(Limit::Topics, 5)].into()), tenant: Quota::default() };
        let text = br#"{"v":1,"operator":{"topics":5},"tenant":{}}"#;
        assert_eq!(&encode("k", &quotas).unwrap()[..], text);
        assert_eq!(decode::<Quotas>("k", text).unwrap(), quotas);
        let grants = [("b".to_owned(), Grant { amount: 7, demand: 3, until_ms: 9 })].into();
        let text = br#"{"v":1,"grants":{"b":{"amount":7,"demand":3,"until_ms":9}}}"#;
        assert_eq!(&encode("k", &Division { grants }).unwrap()[..], text);
        let text = encode("k", &Usage { messages_in: 1, ..Usage::default() }).unwrap();
        assert!(text.starts_with(br#"{"v":1,"messages_in":1,"bytes_in":0,"#));
        let stored = Stored { stored_bytes: 3, backlog_bytes: 2, subscriptions: 1 };
        let text = br#"{"v":1,"stored_bytes":3,"backlog_bytes":2,"subscriptions":1}"#;
        assert_eq!(&encode("k", &stored).unwrap()[..], text);
        assert_eq!(decode::<Stored>("k", text).unwrap(), stored);
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for bad in [&b"{"[..], b"{}", br#"{"v":2,"operator":{}}"#, br#"{"v":1,"operator":{"what":1}}"#, b"\xff"] {
            assert!(decode::<Quotas>("k", bad).is_err());
        }
        assert!(decode::<Quotas>("k", br#"{"v":1,"later":true}"#).unwrap().is_empty());
    }
}
