//! Secrets are taken out of whatever is recorded.
//!
//! Invariants: U4: the value of every field whose name speaks of a secret, and every text that looks like a token, is
//! replaced; what is left keeps its shape.
//! Must never know: which call the values belong to.

use serde_json::Value;

/// Stands where a secret stood.
pub const REDACTED: &str = "***";

/// Parts of names that speak of secrets, in small letters.
const SECRET_NAMES: [&str; 7] =
    ["password", "secret", "token", "credential", "authenticationparameters", "authparams", "privatekey"];
/// Names that hold such a part and are none.
const NO_SECRETS: [&str; 1] = ["authenticationplugin"];

/// Whether a field or parameter of this name holds a secret.
pub fn is_secret(name: &str) -> bool {
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect();
    SECRET_NAMES.iter().any(|part| plain.contains(part)) && !NO_SECRETS.contains(&plain.as_str())
}

/// Takes secrets out of a value.
pub fn value(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                if is_secret(name) && !field.is_null() && !field.is_boolean() {
                    *field = Value::from(REDACTED);
                } else {
                    self::value(field);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(self::value),
        Value::String(held) => {
            if let Some(clean) = without_tokens(held) {
                *held = clean;
            }
        }
        _ => {}
    }
}

/// Takes tokens out of a text.
pub fn text(text: &str) -> String {
    without_tokens(text).unwrap_or_else(|| text.to_owned())
}

fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.=".contains(&byte)
}

/// The text with what looks like a JSON web token replaced (`eyJ…` with two dots); `None` = it holds none.
fn without_tokens(text: &str) -> Option<String> {
    let mut out = String::new();
    let (mut rest, mut found) = (text, false);
    while let Some(at) = rest.find("eyJ") {
        let length = rest[at..].bytes().take_while(|byte| is_token_byte(*byte)).count();
        let word = &rest[at..at + length];
        out.push_str(&rest[..at]);
        if word.bytes().filter(|byte| *byte == b'.').count() >= 2 {
            out.push_str(REDACTED);
            found = true;
        } else {
            out.push_str(word);
        }
        rest = &rest[at + length..];
    }
    out.push_str(rest);
    found.then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const TOKEN: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl-_x";

    #[test]
    fn secrets_are_known_by_name_and_by_look() {
        let mut body = json!({
            "serviceUrl": "http://east:8080",
            "authenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
            "authenticationParameters": "token:abc",
            "nested": [{"db_password": "x", "clientSecret": 7, "note": format!("with token:{TOKEN}, and more")}],
            "secretless": null,
        });
        value(&mut body);
        assert_eq!(
            body,
            json!({
                "serviceUrl": "http://east:8080",
                "authenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
                "authenticationParameters": "***",
                "nested": [{"db_password": "***", "clientSecret": "***", "note": "with token:***, and more"}],
                "secretless": null,
            })
        );
        assert_eq!(text(&format!("/x/{TOKEN}/y")), "/x/***/y");
        assert_eq!(text("eyJ.eyJ is none"), "eyJ.eyJ is none");
        assert_eq!(text("ä eyJ"), "ä eyJ");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_token_is_left_wherever_it_stands(before in ".{0,20}", after in "[ /,\"äx]{0,5}.{0,10}", name in "[a-z]{1,8}") {
            let held = format!("{before} {TOKEN} {after}");
            prop_assert!(!text(&held).contains(TOKEN));
            let mut body = json!({ name: [held] });
            value(&mut body);
            prop_assert!(!body.to_string().contains("c2lnbmF0dXJl"));
        }
    }
}
