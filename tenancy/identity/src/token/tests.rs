//! Tokens, good and bad: algorithms, keys, times, rotation.

use super::*;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{EncodingKey, Header as Head, encode};
use proptest::prelude::*;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, PublicKeyData};
use serde_json::json;

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

fn with_secret() -> TokenConfig {
    TokenConfig { secret_key: STANDARD.encode(SECRET), ..TokenConfig::default() }
}

fn tokens() -> Tokens {
    Tokens::new(&with_secret()).unwrap()
}

fn signed(claims: &Value) -> String {
    encode(&Head::new(Algorithm::HS256), claims, &EncodingKey::from_secret(SECRET).unwrap()).unwrap()
}

fn why(tokens: &Tokens, text: &str) -> String {
    tokens.authenticate(text.as_bytes()).unwrap_err().to_string()
}

/// A key pair: what signs, and the public key as a setting.
fn pair(kind: &'static rcgen::SignatureAlgorithm) -> (EncodingKey, Vec<u8>, String) {
    let pair = KeyPair::generate_for(kind).unwrap();
    let der = pair.serialize_der();
    let signing = if kind == &PKCS_RSA_SHA256 {
        EncodingKey::from_rsa_pem(as_pem("PRIVATE KEY", &der).as_bytes()).unwrap()
    } else {
        EncodingKey::from_ec_der(&der)
    };
    let public = pair.subject_public_key_info();
    let setting = format!("data:;base64,{}", STANDARD.encode(&public));
    (signing, public, setting)
}

#[test]
fn a_token_without_an_end_is_taken() {
    let principal = tokens().authenticate(signed(&json!({"sub": "alice"})).as_bytes()).unwrap();
    assert_eq!(principal, Principal { role: "alice".into(), expires_ms: None });
}

#[test]
fn expired_foreign_and_mangled_tokens_are_refused() {
    let tokens = tokens();
    let refused = |text: &str| why(&tokens, text);
    assert_eq!(refused(&signed(&json!({"sub": "a", "exp": 1000}))), "token refused: it has expired");
    assert_eq!(refused(&signed(&json!({"sub": "a", "nbf": 99_999_999_999u64}))), "token refused: it is not valid yet");
    let other = EncodingKey::from_secret(b"another key of some length").unwrap();
    let foreign = encode(&Head::new(Algorithm::HS256), &json!({"sub": "a"}), &other).unwrap();
    assert_eq!(refused(&foreign), "token refused: the signature does not match");
    assert_eq!(refused("nonsense"), "token refused: it is malformed");
    assert_eq!(refused(&signed(&json!({"aud": "a"}))), "token refused: claim sub holds no role");
    for time in [json!("tomorrow"), json!(null), json!({}), json!(true)] {
        let text = signed(&json!({"sub": "a", "exp": time}));
        assert!(tokens.authenticate(text.as_bytes()).is_err(), "{time}");
    }
}

#[test]
fn unsigned_tokens_and_critical_extensions_are_refused() {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = part(json!({"sub": "admin"}));
    for alg in ["none", "None", "NONE"] {
        let text = format!("{}.{claims}.", part(json!({"alg": alg})));
        assert_eq!(why(&tokens(), &text), "token refused: it is not signed");
    }
    let text = format!("{}.{claims}.AAAA", part(json!({"alg": "HS256", "crit": ["b64"], "b64": false})));
    assert_eq!(why(&tokens(), &text), "token refused: it holds critical extensions");
    let good = signed(&json!({"sub": "a"}));
    let unsigned = good.rsplit_once('.').unwrap().0;
    for text in [unsigned.to_owned(), format!("{unsigned}."), format!("{good}.x"), format!(".{good}"), "..".into()] {
        assert!(tokens().authenticate(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn a_public_key_is_never_taken_for_a_secret() {
    let (signing, public, setting) = pair(&PKCS_RSA_SHA256);
    let config = TokenConfig { public_key: setting.clone(), public_alg: "RS256".into(), ..TokenConfig::default() };
    let tokens = Tokens::new(&config).unwrap();
    let good = encode(&Head::new(Algorithm::RS256), &json!({"sub": "a"}), &signing).unwrap();
    assert_eq!(tokens.authenticate(good.as_bytes()).unwrap().role, "a");
    // The public key is known to all: as DER, as PEM, as the setting's text.
    for secret in [public.clone(), as_pem("PUBLIC KEY", &public).into_bytes(), setting.into_bytes()] {
        let forged = EncodingKey::from_secret(&secret).unwrap();
        let forged = encode(&Head::new(Algorithm::HS256), &json!({"sub": "admin"}), &forged).unwrap();
        assert_eq!(why(&tokens, &forged), "token refused: the algorithm is not the configured one");
    }
    let config = TokenConfig { public_alg: "HS256".into(), ..config };
    assert!(Tokens::new(&config).is_err());
}

#[test]
fn elliptic_keys_sign_too_and_other_keys_do_not_fit() {
    let ((signing, _, setting), (other, ..)) = (pair(&PKCS_ECDSA_P256_SHA256), pair(&PKCS_ECDSA_P256_SHA256));
    let config = TokenConfig { public_key: setting, public_alg: "ES256".into(), ..TokenConfig::default() };
    let tokens = Tokens::new(&config).unwrap();
    let by = |key: &EncodingKey| encode(&Head::new(Algorithm::ES256), &json!({"sub": "a"}), key).unwrap();
    assert_eq!(tokens.authenticate(by(&signing).as_bytes()).unwrap().role, "a");
    assert_eq!(why(&tokens, &by(&other)), "token refused: the signature does not match");
}

#[test]
fn keys_of_a_set_rotate_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("jwks.json");
    let write = |keys: &[(&str, &EncodingKey)]| {
        let keys: Vec<Value> = keys
            .iter()
            .map(|(id, key)| {
                let mut jwk = Jwk::from_encoding_key(key, Algorithm::ES256).unwrap();
                jwk.common.key_id = Some((*id).to_owned());
                serde_json::to_value(jwk).unwrap()
            })
            .collect();
        std::fs::write(&file, json!({ "keys": keys }).to_string()).unwrap();
    };
    let ((old, ..), (new, ..)) = (pair(&PKCS_ECDSA_P256_SHA256), pair(&PKCS_ECDSA_P256_SHA256));
    write(&[("old", &old)]);
    let config = TokenConfig { jwks: format!("file://{}", file.display()), ..with_secret() };
    let tokens = Tokens::new(&config).unwrap();
    let by = |id: &str, key: &EncodingKey| {
        let mut head = Head::new(Algorithm::ES256);
        head.kid = Some(id.to_owned());
        encode(&head, &json!({"sub": "a"}), key).unwrap()
    };
    assert!(tokens.authenticate(by("old", &old).as_bytes()).is_ok());
    assert!(tokens.authenticate(signed(&json!({"sub": "b"})).as_bytes()).is_ok(), "the secret counts beside the set");
    assert!(tokens.authenticate(by("old", &new).as_bytes()).is_err(), "an id alone proves nothing");
    assert!(tokens.authenticate(by("new", &new).as_bytes()).is_err());
    write(&[("old", &old), ("new", &new)]);
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while tokens.authenticate(by("new", &new).as_bytes()).is_err() {
        assert!(std::time::Instant::now() < deadline, "the new key was not taken");
    }
    assert!(tokens.authenticate(by("old", &old).as_bytes()).is_ok());
    write(&[("new", &new)]);
    while tokens.authenticate(by("old", &old).as_bytes()).is_ok() {
        assert!(std::time::Instant::now() < deadline, "the old key was not dropped");
    }
}

#[test]
fn an_audience_must_be_named() {
    let config = TokenConfig { audience_claim: "aud".into(), audience: "region-west".into(), ..with_secret() };
    let tokens = Tokens::new(&config).unwrap();
    let good = signed(&json!({"sub": "a", "aud": ["x", "region-west"], "exp": 99_999_999_999u64}));
    assert_eq!(tokens.authenticate(good.as_bytes()).unwrap().expires_ms, Some(99_999_999_999_000));
    assert!(tokens.authenticate(signed(&json!({"sub": "a", "aud": "other"})).as_bytes()).is_err());
    assert!(tokens.authenticate(signed(&json!({"sub": "a", "aud": {"region-west": 1}})).as_bytes()).is_err());
    assert!(tokens.authenticate(signed(&json!({"sub": "a"})).as_bytes()).is_err());
}

#[test]
fn the_tolerance_for_clocks_is_the_stated_one() {
    let now_s = jsonwebtoken::get_current_timestamp();
    let tolerant = Tokens::new(&TokenConfig { clock_skew_s: 60, ..with_secret() }).unwrap();
    let late = signed(&json!({"sub": "a", "exp": now_s - 30}));
    assert!(tokens().authenticate(late.as_bytes()).is_err());
    let principal = tolerant.authenticate(late.as_bytes()).unwrap();
    assert_eq!(principal.expires_ms, Some((now_s + 30) * 1000), "it ends when the tolerance does");
    let early = signed(&json!({"sub": "a", "nbf": now_s + 30}));
    assert!(tokens().authenticate(early.as_bytes()).is_err() && tolerant.authenticate(early.as_bytes()).is_ok());
    assert!(tolerant.authenticate(signed(&json!({"sub": "a", "exp": now_s - 90})).as_bytes()).is_err());
}

#[test]
fn a_provider_without_a_key_names_the_settings_that_hold_one() {
    let error = Tokens::new(&TokenConfig::default()).err().unwrap().to_string();
    assert!(error.contains("tokenSecretKey") && error.contains("tokenPublicKey"), "{error}");
    let plain = TokenConfig { jwks: "http://issuer/keys".into(), ..TokenConfig::default() };
    assert_eq!(Tokens::new(&plain).err().unwrap().to_string(), "tokenJwks: keys are fetched by https only");
    let blind = TokenConfig { jwks: "https://issuer/keys".into(), ..TokenConfig::default() };
    assert!(Tokens::new(&blind).err().unwrap().to_string().starts_with("tokenJwksTrustCertsFilePath: "));
}

#[test]
fn short_secrets_and_huge_tokens_are_refused() {
    let config = TokenConfig { secret_key: STANDARD.encode(b"short"), ..TokenConfig::default() };
    assert!(Tokens::new(&config).is_err());
    let huge = signed(&json!({"sub": "a", "padding": "x".repeat(MAX_TOKEN_BYTES)}));
    assert_eq!(why(&tokens(), &huge), "token refused: it is longer than 16384 bytes");
}

#[test]
fn a_refusal_holds_nothing_of_the_token() {
    let tokens = tokens();
    for claims in [json!({"sub": "very-secret", "exp": 1}), json!({"aud": "very-secret"})] {
        let text = signed(&claims);
        let error = tokens.authenticate(text.as_bytes()).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("very-secret") && !shown.contains(&text[..20]), "{shown}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_part_of_a_token_can_be_changed_or_left_out(at in 0usize..200, with in any::<u8>(), cut in 0usize..200) {
        let good = signed(&json!({"sub": "alice", "exp": 99_999_999_999u64})).into_bytes();
        let tokens = tokens();
        let mut changed = good.clone();
        let at = at % changed.len();
        changed[at] = with;
        if changed != good {
            // The last character of a part may hold bits that mean nothing: then it is the same token.
            if let Ok(principal) = tokens.authenticate(&changed) {
                prop_assert_eq!(principal.role, "alice");
            }
        }
        prop_assert!(tokens.authenticate(&good[..cut % good.len()]).is_err());
    }

    #[test]
    fn bytes_from_outside_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in "[a-zA-Z0-9_.-]{0,120}") {
        prop_assert!(tokens().authenticate(&bytes).is_err());
        prop_assert!(tokens().authenticate(text.as_bytes()).is_err());
    }
}
