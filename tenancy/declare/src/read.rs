//! Bytes to JSON: a document that begins with `{` is JSON, any other is YAML.
//!
//! Failure: one [`Problem`] with line and column; repeated keys, too many aliases and too deep nesting are refused.

use crate::walk::Problem;
use serde_json::Value;

/// Largest document.
pub const MAX_DOCUMENT_BYTES: usize = 3 << 20;

/// Reads a document without looking at what it says.
///
/// # Errors
/// It is too large, or neither YAML nor JSON.
pub fn read(bytes: &[u8]) -> Result<Value, Problem> {
    if bytes.len() > MAX_DOCUMENT_BYTES {
        let problem = format!("has {} bytes, expected at most {MAX_DOCUMENT_BYTES}", bytes.len());
        return Err(Problem::of_document(problem));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| Problem::of_document(format!("is not UTF-8: {error}")))?;
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|error| Problem::of_document(format!("is not JSON: {error}")));
    }
    serde_saphyr::from_str(text).map_err(|error| Problem::of_document(format!("is not YAML: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn yaml_and_json_say_the_same() {
        let yaml = "owner: a\ntenants:\n  t:\n    adminRoles: [x, 'y']\n    n: 1\n    f: true\n    z: ~\n";
        let json = r#"{"owner":"a","tenants":{"t":{"adminRoles":["x","y"],"n":1,"f":true,"z":null}}}"#;
        assert_eq!(read(yaml.as_bytes()).unwrap(), read(json.as_bytes()).unwrap());
        assert_eq!(read(b"a: 'on'").unwrap(), json!({ "a": "on" }));
    }

    #[test]
    fn what_is_neither_is_refused_in_one_line_or_more_with_its_place() {
        assert!(read(b"{\"a\": }").unwrap_err().problem.contains("line 1 column 7"));
        assert!(read(b"a: [1,\nb: 2").unwrap_err().problem.starts_with("is not YAML"));
        assert!(read(b"a: 1\na: 2\n").is_err(), "a key twice");
        assert!(read(&[0xff, 0xfe]).is_err());
        assert!(read(&vec![b' '; MAX_DOCUMENT_BYTES + 1]).unwrap_err().problem.contains("3145728"));
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for level in 1..9 {
            let before = format!("*a{},", level - 1).repeat(10);
            bomb += &format!("a{level}: &a{level} [{before}]\n");
        }
        assert!(read(bomb.as_bytes()).is_err(), "aliases of aliases");
    }
}
