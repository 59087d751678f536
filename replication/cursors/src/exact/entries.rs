//! A set of entries of one ledger.
//!
//! Role: a roaring bitmap with runs and with an equality that looks at the members, not at how they are kept.
//! Must never know: what membership means.

use meridian_types::EntryId;
use roaring::RoaringBitmap;
use std::ops::RangeInclusive;

/// Entries of one ledger.
#[derive(Debug, Clone, Default)]
pub struct EntrySet(RoaringBitmap);

/// An entry id as a member; ledgers are rolled long before ids outgrow 32 bits.
pub(crate) fn member(entry: EntryId) -> Option<u32> {
    u32::try_from(entry.0).ok()
}

impl EntrySet {
    /// Adds a run; how many members are new.
    pub fn insert_run(&mut self, run: RangeInclusive<u32>) -> u64 {
        self.0.insert_range(run)
    }

    /// Whether an entry is in it.
    pub fn contains(&self, entry: EntryId) -> bool {
        member(entry).is_some_and(|entry| self.0.contains(entry))
    }

    /// Members.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// No members.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Members, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter()
    }

    /// Maximal runs, ascending.
    pub fn runs(&self) -> Runs<'_> {
        Runs { parts: self.0.iter(), open: None }
    }

    /// The end of the run that begins at `from`.
    pub(crate) fn run_end(&self, from: u32) -> Option<u32> {
        let mut parts = self.0.iter();
        parts.advance_to(from);
        let first = Runs { parts, open: None }.next()?;
        (*first.start() == from).then(|| *first.end())
    }

    pub(crate) fn remove_up_to(&mut self, entry: EntryId) {
        if entry > EntryId::NONE {
            self.0.remove_range(..=member(entry).unwrap_or(u32::MAX));
        }
    }

    /// Adds `other`; what was new, if anything.
    pub(crate) fn join(&mut self, other: &EntrySet) -> Option<EntrySet> {
        let new = &other.0 - &self.0;
        if new.is_empty() {
            return None;
        }
        self.0 |= &new;
        Some(EntrySet(new))
    }

    /// Bytes that it takes, roughly.
    pub(crate) fn bytes(&self) -> usize {
        self.0.serialized_size()
    }
}

impl PartialEq for EntrySet {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.0.is_subset(&other.0)
    }
}

impl FromIterator<u32> for EntrySet {
    fn from_iter<I: IntoIterator<Item = u32>>(members: I) -> Self {
        Self(members.into_iter().collect())
    }
}

/// See [`EntrySet::runs`].
pub struct Runs<'a> {
    parts: roaring::bitmap::Iter<'a>,
    open: Option<RangeInclusive<u32>>,
}

impl Iterator for Runs<'_> {
    type Item = RangeInclusive<u32>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut run = self.open.take().or_else(|| self.parts.next_range())?;
        // The bitmap ends a run at the end of a container.
        while let Some(part) = self.parts.next_range() {
            if run.end().checked_add(1) != Some(*part.start()) {
                self.open = Some(part);
                break;
            }
            run = *run.start()..=*part.end();
        }
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_maximal_over_containers() {
        let mut set = EntrySet::default();
        set.insert_run(65_000..=70_000);
        set.insert_run(1..=1);
        set.insert_run(70_001..=70_001);
        assert_eq!(set.runs().collect::<Vec<_>>(), [1..=1, 65_000..=70_001]);
        assert_eq!(set.run_end(65_000), Some(70_001));
        assert_eq!(set.run_end(66_000), Some(70_001));
        assert_eq!(set.run_end(2), None);
    }

    #[test]
    fn equality_is_of_members() {
        let mut runs = EntrySet::default();
        runs.insert_run(0..=99);
        assert_eq!(runs, (0..100).collect::<EntrySet>());
        assert_ne!(runs, (0..101).collect::<EntrySet>());
    }
}
