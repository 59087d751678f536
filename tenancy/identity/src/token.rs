//! JSON web tokens, under Pulsar's setting names.
//!
//! Failure: a token is refused with the rule it broke, never with its text (I1).

use crate::{IdentityError, Principal, source};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde_json::{Map, Value};

/// Settings of tokens.
#[derive(Clone, Default)]
pub struct TokenConfig {
    /// `tokenSecretKey`; wins over the public key.
    pub secret_key: String,
    /// `tokenPublicKey`.
    pub public_key: String,
    /// `tokenPublicAlg`, e.g. `RS256`.
    pub public_alg: String,
    /// `tokenAuthClaim`, empty = `sub`.
    pub auth_claim: String,
    /// `tokenAudienceClaim`.
    pub audience_claim: String,
    /// `tokenAudience`.
    pub audience: String,
    /// `tokenAllowedClockSkewSeconds`.
    pub clock_skew_s: u64,
}

pub(crate) struct Tokens {
    key: DecodingKey,
    validation: Validation,
    auth_claim: String,
    audience: Option<(String, String)>,
}

impl Tokens {
    pub(crate) fn new(config: &TokenConfig) -> Result<Self, IdentityError> {
        if config.secret_key.is_empty() && config.public_key.is_empty() {
            return Err(IdentityError::Config {
                setting: "authenticationProviders",
                reason: "token authentication needs a key: set tokenSecretKey (HMAC tokens) or tokenPublicKey with \
                         tokenPublicAlg (signed tokens)"
                    .to_owned(),
            });
        }
        let (key, algorithms) = if config.secret_key.is_empty() { public_key(config)? } else { secret_key(config)? };
        let mut validation = Validation::new(algorithms[0]);
        validation.algorithms = algorithms;
        validation.required_spec_claims.clear();
        validation.validate_exp = true;
        validation.validate_nbf = true;
        validation.validate_aud = false;
        validation.leeway = config.clock_skew_s;
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
        Ok(Self { key, validation, auth_claim: auth_claim.to_owned(), audience })
    }

    pub(crate) fn authenticate(&self, data: &[u8]) -> Result<Principal, IdentityError> {
        let text = std::str::from_utf8(data).map_err(|_| IdentityError::Token("it is no text".to_owned()))?.trim();
        let claims = jsonwebtoken::decode::<Map<String, Value>>(text, &self.key, &self.validation)
            .map_err(|e| IdentityError::Token(broken_rule(e.kind())))?
            .claims;
        if let Some((claim, wanted)) = &self.audience {
            let named = match claims.get(claim) {
                Some(Value::String(one)) => one == wanted,
                Some(Value::Array(many)) => many.iter().any(|one| one.as_str() == Some(wanted)),
                _ => false,
            };
            if !named {
                return Err(IdentityError::Token("the audience is not named".to_owned()));
            }
        }
        let role = match claims.get(&self.auth_claim) {
            Some(Value::String(role)) => Some(role.as_str()),
            Some(Value::Array(roles)) => roles.first().and_then(Value::as_str),
            _ => None,
        };
        let role = role.filter(|role| !role.is_empty());
        let role = role.ok_or_else(|| IdentityError::Token(format!("claim {} holds no role", self.auth_claim)))?;
        let expires_ms = claims.get("exp").and_then(Value::as_f64).map(|seconds| (seconds * 1000.0) as u64);
        Ok(Principal { role: role.to_owned(), expires_ms })
    }
}

fn secret_key(config: &TokenConfig) -> Result<(DecodingKey, Vec<Algorithm>), IdentityError> {
    let secret = source::load("tokenSecretKey", &config.secret_key)?;
    if secret.len() < 16 {
        let reason = format!("a key of {} bytes is too short (at least 16)", secret.len());
        return Err(IdentityError::Config { setting: "tokenSecretKey", reason });
    }
    let key = DecodingKey::from_secret(&secret)
        .map_err(|e| IdentityError::Config { setting: "tokenSecretKey", reason: e.to_string() })?;
    Ok((key, vec![Algorithm::HS256, Algorithm::HS384, Algorithm::HS512]))
}

fn public_key(config: &TokenConfig) -> Result<(DecodingKey, Vec<Algorithm>), IdentityError> {
    let raw = source::load("tokenPublicKey", &config.public_key)?;
    let pem = if raw.starts_with(b"-----") { raw } else { as_pem(&raw) };
    let refuse = |e: jsonwebtoken::errors::Error| IdentityError::Config {
        setting: "tokenPublicKey",
        reason: format!("is no public key for {}: {e}", config.public_alg),
    };
    let name = if config.public_alg.is_empty() { "RS256" } else { config.public_alg.as_str() };
    let algorithm: Algorithm = name.parse().map_err(|_| IdentityError::Config {
        setting: "tokenPublicAlg",
        reason: format!("'{name}' is not one of RS256, RS384, RS512, ES256, ES384, PS256, PS384, PS512"),
    })?;
    let key = match algorithm {
        Algorithm::ES256 | Algorithm::ES384 => DecodingKey::from_ec_pem(&pem).map_err(refuse)?,
        _ => DecodingKey::from_rsa_pem(&pem).map_err(refuse)?,
    };
    Ok((key, vec![algorithm]))
}

/// Pulsar's key files are DER (SubjectPublicKeyInfo); the library reads PEM.
fn as_pem(der: &[u8]) -> Vec<u8> {
    let text = STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN PUBLIC KEY-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.push_str(&String::from_utf8_lossy(line));
        pem.push('\n');
    }
    pem.push_str("-----END PUBLIC KEY-----\n");
    pem.into_bytes()
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
mod tests {
    use super::*;
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::json;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn tokens() -> Tokens {
        Tokens::new(&TokenConfig { secret_key: STANDARD.encode(SECRET), ..TokenConfig::default() }).unwrap()
    }

    fn signed(claims: &Value) -> String {
        encode(&Header::new(Algorithm::HS256), claims, &EncodingKey::from_secret(SECRET).unwrap()).unwrap()
    }

    #[test]
    fn a_token_without_an_end_is_taken() {
        let principal = tokens().authenticate(signed(&json!({"sub": "alice"})).as_bytes()).unwrap();
        assert_eq!(principal, Principal { role: "alice".into(), expires_ms: None });
    }

    #[test]
    fn expired_foreign_and_mangled_tokens_are_refused() {
        let tokens = tokens();
        let refused = |text: &str| tokens.authenticate(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(refused(&signed(&json!({"sub": "a", "exp": 1000}))), "token refused: it has expired");
        assert_eq!(
            refused(&signed(&json!({"sub": "a", "nbf": 99_999_999_999u64}))),
            "token refused: it is not valid yet"
        );
        let other = EncodingKey::from_secret(b"another key of some length").unwrap();
        let foreign = encode(&Header::new(Algorithm::HS256), &json!({"sub": "a"}), &other).unwrap();
        assert_eq!(refused(&foreign), "token refused: the signature does not match");
        assert_eq!(refused("nonsense"), "token refused: it is malformed");
        assert_eq!(refused(&signed(&json!({"aud": "a"}))), "token refused: claim sub holds no role");
    }

    #[test]
    fn an_audience_must_be_named() {
        let config = TokenConfig {
            secret_key: STANDARD.encode(SECRET),
            audience_claim: "aud".into(),
            audience: "region-west".into(),
            ..TokenConfig::default()
        };
        let tokens = Tokens::new(&config).unwrap();
        let good = signed(&json!({"sub": "a", "aud": ["x", "region-west"], "exp": 99_999_999_999u64}));
        assert_eq!(tokens.authenticate(good.as_bytes()).unwrap().expires_ms, Some(99_999_999_999_000));
        assert!(tokens.authenticate(signed(&json!({"sub": "a", "aud": "other"})).as_bytes()).is_err());
        assert!(tokens.authenticate(signed(&json!({"sub": "a"})).as_bytes()).is_err());
    }

    #[test]
    fn a_provider_without_a_key_names_the_settings_that_hold_one() {
        let error = Tokens::new(&TokenConfig::default()).err().unwrap().to_string();
        assert!(error.contains("tokenSecretKey") && error.contains("tokenPublicKey"), "{error}");
    }

    #[test]
    fn short_secrets_are_refused() {
        let config = TokenConfig { secret_key: STANDARD.encode(b"short"), ..TokenConfig::default() };
        assert!(Tokens::new(&config).is_err());
    }
}
