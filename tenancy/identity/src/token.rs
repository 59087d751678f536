//! JSON web tokens, under Pulsar's setting names.
//!
//! Invariants: T1 the algorithm is the key's: a token's header only chooses among keys that are meant for what it names,
//! so `none` and a public key taken for a secret are nothing; T2 a token is looked at only up to [`MAX_TOKEN_BYTES`]; T3
//! extensions that a token calls critical are refused, since none is known; T4 times are numbers or the token is refused.
//! Failure: a token is refused with the rule it broke, never with its text (I1).

use crate::jwks::{self, FetchFrom, Fetcher, SetKey};
use crate::tls::{ClientFiles, client_config};
use crate::watched::Watched;
use crate::{IdentityError, Principal, https, source};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Duration;

/// Longest token that is looked at (T2).
pub const MAX_TOKEN_BYTES: usize = 16 << 10;
/// Key files are looked at again that often.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Settings of tokens.
#[derive(Clone, Default)]
pub struct TokenConfig {
    /// `tokenSecretKey`; wins over the public key.
    pub secret_key: String,
    /// `tokenPublicKey`.
    pub public_key: String,
    /// `tokenPublicAlg`, e.g. `RS256`.
    pub public_alg: String,
    /// `tokenJwks`: a set of public keys, beside the key above: a file, inline data or an https address.
    pub jwks: String,
    /// `tokenJwksTrustCertsFilePath`: authorities that the https address is checked against.
    pub jwks_trust: String,
    /// `tokenJwksRefreshSeconds`: the https address is asked again that often; 0 = 300.
    pub jwks_refresh_s: u64,
    /// `tokenAuthClaim`, empty = `sub`.
    pub auth_claim: String,
    /// `tokenAudienceClaim`.
    pub audience_claim: String,
    /// `tokenAudience`.
    pub audience: String,
    /// `tokenAllowedClockSkewSeconds`.
    pub clock_skew_s: u64,
}

/// One configured key: a secret or a public one.
struct OneKey {
    key: DecodingKey,
    algorithms: Vec<Algorithm>,
}

enum Set {
    None,
    Kept(Watched<Vec<SetKey>>),
    Fetched(Fetcher),
}

pub(crate) struct Tokens {
    one: Option<Watched<OneKey>>,
    set: Set,
    auth_claim: String,
    audience: Option<(String, String)>,
    clock_skew_s: u64,
}

fn refused(why: impl Into<String>) -> IdentityError {
    IdentityError::Token(why.into())
}

impl Tokens {
    pub(crate) fn new(config: &TokenConfig) -> Result<Self, IdentityError> {
        let one = match (config.secret_key.is_empty(), config.public_key.is_empty()) {
            (true, true) => None,
            (false, _) => Some(watched("tokenSecretKey", &config.secret_key, config, secret_key)?),
            (true, false) => Some(watched("tokenPublicKey", &config.public_key, config, public_key)?),
        };
        let set = set_of(config)?;
        if one.is_none() && matches!(set, Set::None) {
            return Err(IdentityError::Config {
                setting: "authenticationProviders",
                reason: "token authentication needs a key: set tokenSecretKey (HMAC tokens), or tokenPublicKey with \
                         tokenPublicAlg or tokenJwks (signed tokens)"
                    .to_owned(),
            });
        }
        let audience = match (config.audience_claim.is_empty(), config.audience.is_empty()) {
            (true, _) => None,
            (false, true) => {
                return Err(IdentityError::Config {
                    setting: "tokenAudience",
                    reason: "must be set when tokenAudienceClaim is".to_owned(),
                });
            }
            (false, false) => Some((config.audience_claim.clone(), config.audience.clone())),
        };
        let auth_claim = if config.auth_claim.is_empty() { "sub" } else { &config.auth_claim };
        Ok(Self { one, set, auth_claim: auth_claim.to_owned(), audience, clock_skew_s: config.clock_skew_s })
    }

    pub(crate) fn authenticate(&self, data: &[u8]) -> Result<Principal, IdentityError> {
        if data.len() > MAX_TOKEN_BYTES {
            return Err(refused(format!("it is longer than {MAX_TOKEN_BYTES} bytes")));
        }
        let text = std::str::from_utf8(data).map_err(|_| refused("it is no text"))?.trim();
        let header = Header::read(text)?;
        let claims = self.check(text, &header)?;
        self.check_audience(&claims)?;
        let role = match claims.get(&self.auth_claim) {
            Some(Value::String(role)) => Some(role.as_str()),
            Some(Value::Array(roles)) => roles.first().and_then(Value::as_str),
            _ => None,
        };
        let role = role.filter(|role| !role.is_empty());
        let role = role.ok_or_else(|| refused(format!("claim {} holds no role", self.auth_claim)))?;
        let end_s = claims.get("exp").and_then(Value::as_f64);
        // What the tolerance lets in must not be asked for again at once.
        let expires_ms = end_s.map(|end_s| ((end_s + self.clock_skew_s as f64) * 1000.0) as u64);
        Ok(Principal { role: role.to_owned(), expires_ms })
    }

    /// Times that keys could not be read or fetched again.
    pub(crate) fn failures(&self) -> u64 {
        let one = self.one.as_ref().map_or(0, Watched::failures);
        one + match &self.set {
            Set::None => 0,
            Set::Kept(keys) => keys.failures(),
            Set::Fetched(fetcher) => fetcher.failures(),
        }
    }

    /// The claims, if one of the keys that the header may mean has signed them (T1).
    fn check(&self, text: &str, header: &Header) -> Result<Map<String, Value>, IdentityError> {
        let mut fault: Option<IdentityError> = None;
        if let Some(one) = self.one.as_ref().map(Watched::current)
            && one.algorithms.contains(&header.algorithm)
        {
            match self.decode(text, &one.key, header.algorithm) {
                Ok(claims) => return Ok(claims),
                Err(error) => fault = Some(error),
            }
        }
        let keys = match &self.set {
            Set::None => Arc::default(),
            Set::Kept(keys) => keys.current(),
            Set::Fetched(fetcher) => fetcher.keys(),
        };
        let mut known = false;
        for key in jwks::candidates(&keys, header.key_id.as_deref(), header.algorithm) {
            known = true;
            match self.decode(text, &key.key, header.algorithm) {
                Ok(claims) => return Ok(claims),
                Err(error) => fault = Some(error),
            }
        }
        if let (false, Set::Fetched(fetcher)) = (known, &self.set) {
            fetcher.nudge();
            fault = fault.or_else(|| Some(refused("its key is not known (yet)")));
        }
        Err(fault.unwrap_or_else(|| refused("the algorithm is not the configured one")))
    }

    fn decode(&self, text: &str, key: &DecodingKey, algorithm: Algorithm) -> Result<Map<String, Value>, IdentityError> {
        let mut validation = Validation::new(algorithm);
        validation.required_spec_claims.clear();
        validation.validate_nbf = true;
        validation.validate_aud = false;
        validation.leeway = self.clock_skew_s;
        let decoded = jsonwebtoken::decode::<Map<String, Value>>(text, key, &validation);
        let claims = decoded.map_err(|error| refused(broken_rule(error.kind())))?.claims;
        // T4.
        for claim in ["exp", "nbf"] {
            if claims.get(claim).is_some_and(|value| !value.is_number()) {
                return Err(refused(format!("claim {claim} is no time")));
            }
        }
        Ok(claims)
    }

    fn check_audience(&self, claims: &Map<String, Value>) -> Result<(), IdentityError> {
        let Some((claim, wanted)) = &self.audience else { return Ok(()) };
        let named = match claims.get(claim) {
            Some(Value::String(one)) => one == wanted,
            Some(Value::Array(many)) => many.iter().any(|one| one.as_str() == Some(wanted)),
            _ => false,
        };
        if named { Ok(()) } else { Err(refused("the audience is not named")) }
    }
}

/// What is taken from a token's header before it is checked.
struct Header {
    algorithm: Algorithm,
    key_id: Option<String>,
}

impl Header {
    fn read(text: &str) -> Result<Self, IdentityError> {
        let malformed = || refused("it is malformed");
        if text.split('.').count() != 3 {
            return Err(malformed());
        }
        let first = text.split('.').next().unwrap_or_default();
        let raw = URL_SAFE_NO_PAD.decode(first).map_err(|_| malformed())?;
        let fields: Map<String, Value> = serde_json::from_slice(&raw).map_err(|_| malformed())?;
        if fields.contains_key("crit") {
            return Err(refused("it holds critical extensions"));
        }
        let name = fields.get("alg").and_then(Value::as_str).ok_or_else(malformed)?;
        if name.eq_ignore_ascii_case("none") {
            return Err(refused("it is not signed"));
        }
        let algorithm = name.parse().map_err(|_| refused("the algorithm is not the configured one"))?;
        let key_id = fields.get("kid").and_then(Value::as_str).map(str::to_owned);
        Ok(Self { algorithm, key_id })
    }
}

type Build = fn(&TokenConfig) -> Result<OneKey, IdentityError>;

fn watched(
    setting: &'static str,
    value: &str,
    config: &TokenConfig,
    build: Build,
) -> Result<Watched<OneKey>, IdentityError> {
    let config = config.clone();
    Watched::new(setting, source::path(value).into_iter().collect(), LOOK_AGAIN, move || build(&config))
}

fn set_of(config: &TokenConfig) -> Result<Set, IdentityError> {
    let value = config.jwks.clone();
    if value.is_empty() {
        return Ok(Set::None);
    }
    let refuse = |reason: &str| IdentityError::Config { setting: "tokenJwks", reason: reason.to_owned() };
    if value.starts_with("http://") {
        return Err(refuse("keys are fetched by https only"));
    }
    if !value.starts_with("https://") {
        let files = source::path(&value).into_iter().collect();
        return Ok(Set::Kept(Watched::new("tokenJwks", files, LOOK_AGAIN, move || jwks::load(&value))?));
    }
    let url = https::Url::parse(&value).ok_or_else(|| refuse("expected https://host:port/path"))?;
    if config.jwks_trust.is_empty() {
        return Err(IdentityError::Config {
            setting: "tokenJwksTrustCertsFilePath",
            reason: "must name the authorities of the https address in tokenJwks".to_owned(),
        });
    }
    let files = ClientFiles { trust: config.jwks_trust.clone(), ..ClientFiles::default() };
    let tls = client_config("tokenJwksTrustCertsFilePath", &files)?;
    let every = Duration::from_secs(if config.jwks_refresh_s == 0 { 300 } else { config.jwks_refresh_s });
    Ok(Set::Fetched(Fetcher::start(FetchFrom { url, tls, every })?))
}

fn secret_key(config: &TokenConfig) -> Result<OneKey, IdentityError> {
    let secret = source::load("tokenSecretKey", &config.secret_key)?;
    let refuse = |reason: String| IdentityError::Config { setting: "tokenSecretKey", reason };
    if secret.len() < 16 {
        return Err(refuse(format!("a key of {} bytes is too short (at least 16)", secret.len())));
    }
    let key = DecodingKey::from_secret(&secret).map_err(|error| refuse(error.to_string()))?;
    Ok(OneKey { key, algorithms: vec![Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] })
}

fn public_key(config: &TokenConfig) -> Result<OneKey, IdentityError> {
    let raw = source::load("tokenPublicKey", &config.public_key)?;
    let pem = if raw.starts_with(b"-----") { raw } else { as_pem("PUBLIC KEY", &raw).into_bytes() };
    let refuse = |error: jsonwebtoken::errors::Error| IdentityError::Config {
        setting: "tokenPublicKey",
        reason: format!("is no public key for {}: {error}", config.public_alg),
    };
    let name = if config.public_alg.is_empty() { "RS256" } else { config.public_alg.as_str() };
    let unknown = || IdentityError::Config {
        setting: "tokenPublicAlg",
        reason: format!("'{name}' is not one of RS256, RS384, RS512, ES256, ES384, PS256, PS384, PS512"),
    };
    let algorithm: Algorithm = name.parse().map_err(|_| unknown())?;
    let key = match algorithm {
        Algorithm::ES256 | Algorithm::ES384 => DecodingKey::from_ec_pem(&pem).map_err(refuse)?,
        // T1: a public key is never a secret.
        Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => return Err(unknown()),
        _ => DecodingKey::from_rsa_pem(&pem).map_err(refuse)?,
    };
    Ok(OneKey { key, algorithms: vec![algorithm] })
}

/// Pulsar's key files are DER (SubjectPublicKeyInfo, PKCS #8); the library reads PEM.
pub fn as_pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem.push_str(&format!("-----END {label}-----\n"));
    pem
}

fn broken_rule(kind: &ErrorKind) -> String {
    match kind {
        ErrorKind::ExpiredSignature => "it has expired".to_owned(),
        ErrorKind::ImmatureSignature => "it is not valid yet".to_owned(),
        ErrorKind::InvalidSignature => "the signature does not match".to_owned(),
        ErrorKind::InvalidAlgorithm => "the algorithm is not the configured one".to_owned(),
        _ => "it is malformed".to_owned(),
    }
}

#[cfg(test)]
mod tests;
