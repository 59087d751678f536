//! The nearest known name to a misspelt one, by edit distance.

/// The candidate with the smallest edit distance (letter case ignored), if it is near enough to be a likely slip: at
/// most a third of the name's length.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = name.to_ascii_lowercase();
    let limit = (name.len() / 3).max(1);
    candidates
        .map(|candidate| (distance(&wanted, &candidate.to_ascii_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn distance(a: &str, b: &str) -> usize {
    let b: Vec<u8> = b.bytes().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_found_and_strangers_are_not() {
        let known = ["brokerServicePort", "webServicePort", "clusterName"];
        assert_eq!(nearest("brokerServicPort", known.into_iter()), Some("brokerServicePort"));
        assert_eq!(nearest("websericeport", known.into_iter()), Some("webServicePort"));
        assert_eq!(nearest("somethingElse", known.into_iter()), None);
    }
}
