//! Answers as people or scripts read them.

use crate::cli::Failure;
use clap::ValueEnum;
use serde_json::Value;
use std::fmt::Write;

/// How answers are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns.
    Table,
    /// JSON, indented.
    Json,
}

/// Prints an answer; nothing for nothing.
///
/// # Errors
/// It can't be written as JSON.
#[expect(clippy::print_stdout, reason = "this is what the command is for")]
pub fn print(answer: &Value, format: Format) -> Result<(), Failure> {
    match (answer, format) {
        (Value::Null, Format::Table) => {}
        (answer, Format::Table) => print!("{}", table(answer)),
        (answer, Format::Json) => println!("{}", serde_json::to_string_pretty(answer)?),
    }
    Ok(())
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_owned(),
        value => value.to_string(),
    }
}

/// Lists a line each, objects a line for each field, lists of objects a column for each field.
fn table(value: &Value) -> String {
    let rows: Vec<Vec<String>> = match value {
        Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_object) => objects(items),
        Value::Array(items) => items.iter().map(|item| vec![plain(item)]).collect(),
        Value::Object(fields) => fields.iter().map(|(name, field)| vec![name.clone(), plain(field)]).collect(),
        value => vec![vec![plain(value)]],
    };
    aligned(&rows)
}

fn objects(items: &[Value]) -> Vec<Vec<String>> {
    let mut head: Vec<String> = Vec::new();
    for name in items.iter().filter_map(Value::as_object).flat_map(|fields| fields.keys()) {
        if !head.contains(name) {
            head.push(name.clone());
        }
    }
    let row = |item: &Value| head.iter().map(|name| plain(&item[name.as_str()])).collect();
    let rows: Vec<Vec<String>> = items.iter().map(row).collect();
    std::iter::once(head).chain(rows).collect()
}

fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a String does not fail.
            let _ = write!(line, "{cell:<width$}  ");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_kind_of_answer_has_its_table() {
        assert_eq!(table(&json!(["a", "b"])), "a\nb\n");
        assert_eq!(table(&json!({ "time": 1, "sizes": [2] })), "sizes  [2]\ntime   1\n");
        assert_eq!(table(&json!([{ "a": 1 }, { "a": 2, "b": "x" }])), "a  b\n1  -\n2  x\n");
        assert_eq!(table(&json!(7)), "7\n");
    }
}
