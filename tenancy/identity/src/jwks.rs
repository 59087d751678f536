//! Sets of public keys (JWKS, RFC 7517): parsed, chosen from, fetched again.
//!
//! Role: the keys that signed tokens are checked with while an issuer rotates them. A set comes from a file or inline
//! data, or from an https address that a thread of its own asks every so often and when a token names a key that is not
//! known.
//! Invariants: K1 a key's algorithms come from the key, never from a token; K2 secret (symmetric) keys and keys for
//! encryption are never taken from a set; K3 a fetch is bounded in time and size, and begins at most once in
//! [`FETCH_AT_MOST_EVERY`]; K4 a set that can't be fetched or read leaves the last good one in force.
//! Must never know: claims.

use crate::{IdentityError, https, source};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Keys of one set at most.
const MAX_KEYS: usize = 64;
/// K3.
const FETCH_AT_MOST_EVERY: Duration = Duration::from_secs(1);
/// Largest answer.
const MAX_ANSWER_BYTES: usize = 256 << 10;

const SETTING: &str = "tokenJwks";

/// A key that checks signatures.
#[derive(Clone)]
pub(crate) struct SetKey {
    pub(crate) id: Option<String>,
    /// K1.
    pub(crate) algorithms: Vec<Algorithm>,
    pub(crate) key: DecodingKey,
}

/// Reads a set.
///
/// # Errors
/// It is no set, holds too many keys, or none that can be used.
pub(crate) fn parse(raw: &[u8]) -> Result<Vec<SetKey>, IdentityError> {
    let refuse = |reason: String| IdentityError::Config { setting: SETTING, reason };
    let set: JwkSet = serde_json::from_slice(raw).map_err(|error| refuse(format!("is no set of keys: {error}")))?;
    if set.keys.len() > MAX_KEYS {
        return Err(refuse(format!("holds {} keys; expected {MAX_KEYS} at most", set.keys.len())));
    }
    let keys: Vec<SetKey> = set.keys.iter().filter_map(usable).collect();
    if keys.is_empty() { Err(refuse("holds no key for RS, PS or ES signatures".to_owned())) } else { Ok(keys) }
}

fn usable(jwk: &Jwk) -> Option<SetKey> {
    if !matches!(jwk.common.public_key_use, None | Some(PublicKeyUse::Signature)) {
        return None;
    }
    let fitting = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => {
            use Algorithm::{PS256, PS384, PS512, RS256, RS384, RS512};
            vec![RS256, RS384, RS512, PS256, PS384, PS512]
        }
        AlgorithmParameters::EllipticCurve(curve) => match curve.curve {
            EllipticCurve::P256 => vec![Algorithm::ES256],
            EllipticCurve::P384 => vec![Algorithm::ES384],
            _ => return None,
        },
        // K2.
        _ => return None,
    };
    let algorithms = match jwk.common.key_algorithm {
        None => fitting,
        Some(named) => fitting.into_iter().filter(|one| format!("{one:?}") == named.to_string()).collect(),
    };
    let key = DecodingKey::from_jwk(jwk).ok()?;
    if algorithms.is_empty() { None } else { Some(SetKey { id: jwk.common.key_id.clone(), algorithms, key }) }
}

/// The keys of a set that a token's header may mean: those of its id, or all if it names none.
pub(crate) fn candidates<'a>(
    keys: &'a [SetKey],
    id: Option<&'a str>,
    algorithm: Algorithm,
) -> impl Iterator<Item = &'a SetKey> {
    keys.iter()
        .filter(move |key| id.is_none() || key.id.as_deref() == id)
        .filter(move |key| key.algorithms.contains(&algorithm))
}

/// A set behind an address.
pub(crate) struct Fetched {
    state: Mutex<State>,
    nudge: Condvar,
}

struct State {
    keys: Arc<Vec<SetKey>>,
    wanted: bool,
    ended: bool,
    failures: u64,
}

/// Asks for the set as long as it is kept.
pub(crate) struct Fetcher {
    fetched: Arc<Fetched>,
}

/// Where a set is fetched from.
#[derive(Clone)]
pub(crate) struct FetchFrom {
    pub(crate) url: https::Url,
    pub(crate) tls: Arc<rustls::ClientConfig>,
    pub(crate) every: Duration,
}

impl Fetcher {
    /// Begins to ask. The issuer may be down: until it answers no token of it is accepted.
    pub(crate) fn start(from: FetchFrom) -> Result<Self, IdentityError> {
        let state = State { keys: Arc::default(), wanted: true, ended: false, failures: 0 };
        let fetched = Arc::new(Fetched { state: Mutex::new(state), nudge: Condvar::new() });
        let weak = Arc::downgrade(&fetched);
        std::thread::Builder::new()
            .name("jwks".to_owned())
            .spawn(move || run(&weak, &from))
            .map_err(|error| IdentityError::Config { setting: SETTING, reason: error.to_string() })?;
        Ok(Self { fetched })
    }

    pub(crate) fn keys(&self) -> Arc<Vec<SetKey>> {
        self.fetched.state.lock().keys.clone()
    }

    /// A token names a key that is not known: the issuer may have rotated its keys.
    pub(crate) fn nudge(&self) {
        self.fetched.state.lock().wanted = true;
        self.fetched.nudge.notify_one();
    }

    pub(crate) fn failures(&self) -> u64 {
        self.fetched.state.lock().failures
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.fetched.state.lock().ended = true;
        self.fetched.nudge.notify_one();
    }
}

fn run(fetched: &Weak<Fetched>, from: &FetchFrom) {
    let mut last: Option<Instant> = None;
    while let Some(fetched) = fetched.upgrade() {
        {
            let mut state = fetched.state.lock();
            // K3, and then until somebody asks or it is time.
            let earliest = last.map(|last| last + FETCH_AT_MOST_EVERY);
            while let Some(earliest) = earliest.filter(|at| !state.ended && Instant::now() < *at) {
                fetched.nudge.wait_until(&mut state, earliest);
            }
            let latest = Instant::now() + from.every;
            while !state.wanted && !state.ended && Instant::now() < latest {
                fetched.nudge.wait_until(&mut state, latest);
            }
            if state.ended {
                return;
            }
            state.wanted = false;
        }
        last = Some(Instant::now());
        let keys = https::get(&from.url, from.tls.clone(), MAX_ANSWER_BYTES)
            .and_then(|raw| parse(&raw).map_err(|error| error.to_string()));
        let mut state = fetched.state.lock();
        match keys {
            Ok(keys) => state.keys = Arc::new(keys),
            Err(reason) => {
                state.failures += 1;
                tracing::warn!(url = %from.url, reason, "keys of tokens could not be fetched; the last good ones hold");
            }
        }
    }
}

/// A set from a file or inline data.
pub(crate) fn load(value: &str) -> Result<Vec<SetKey>, IdentityError> {
    parse(&source::load(SETTING, value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const P256: &str = r#"{"kty":"EC","crv":"P-256","kid":"a","use":"sig","alg":"ES256",
        "x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}"#;

    fn set(keys: &[&str]) -> Result<Vec<SetKey>, IdentityError> {
        parse(format!(r#"{{"keys":[{}]}}"#, keys.join(",")).as_bytes())
    }

    #[test]
    fn keys_of_a_set_are_for_signatures_of_their_kind_only() {
        let keys = set(&[P256]).unwrap();
        assert_eq!(keys[0].algorithms, [Algorithm::ES256]);
        assert_eq!(candidates(&keys, Some("a"), Algorithm::ES256).count(), 1);
        assert_eq!(candidates(&keys, None, Algorithm::ES256).count(), 1);
        assert_eq!(candidates(&keys, Some("b"), Algorithm::ES256).count(), 0);
        assert_eq!(candidates(&keys, Some("a"), Algorithm::HS256).count(), 0);
    }

    #[test]
    fn secrets_and_keys_for_encryption_are_passed_over() {
        let secret = r#"{"kty":"oct","kid":"s","k":"c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"}"#;
        let encrypting = P256.replace("\"sig\"", "\"enc\"");
        for useless in [set(&[secret]), set(&[&encrypting]), set(&[]), parse(b"{"), parse(b"{}")] {
            assert!(useless.is_err());
        }
        assert_eq!(set(&[secret, P256]).unwrap().len(), 1);
    }

    #[test]
    fn a_set_is_bounded() {
        let many = vec![P256; MAX_KEYS + 1];
        let error = set(&many).err().unwrap().to_string();
        assert_eq!(error, "tokenJwks: holds 65 keys; expected 64 at most");
    }
}
