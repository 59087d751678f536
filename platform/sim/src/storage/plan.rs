//! What a seed decides before anything happens.

use crate::plan::Rng;
use meridian_ledger::layout::Layout;

/// Bookies and (E, Qw, Qa). More bookies than E, so that lost ones can be replaced.
const SHAPES: [(usize, (u32, u32, u32)); 6] =
    [(5, (3, 3, 2)), (4, (3, 3, 2)), (6, (3, 3, 2)), (5, (3, 2, 2)), (6, (4, 3, 2)), (6, (5, 3, 2))];

/// Chances are in thousandths per look of the chaos.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct StoragePlan {
    pub seed: u64,
    pub bookies: usize,
    pub ensemble: u32,
    pub write_quorum: u32,
    pub ack_quorum: u32,
    pub brokers: usize,
    pub workers: usize,
    /// Entries of a ledger before it is rolled.
    pub entries_per_ledger: u64,
    /// Faults end here.
    pub chaos_ms: u64,
    pub delay_ms: u64,
    pub jitter_ms: u64,
    pub loss: u64,
    pub bookie_crash: u64,
    pub bookie_lost: u64,
    pub damage: u64,
    pub crash: u64,
    pub pause: u64,
    pub partition: u64,
    pub metadata_outage: u64,
    pub reassign: u64,
    /// A writer waits so long for a failed member before it replaces it.
    pub change_delay_ms: u64,
}

impl StoragePlan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x0057_0a6e);
        let (bookies, (ensemble, write_quorum, ack_quorum)) = SHAPES[rng.below(SHAPES.len() as u64) as usize];
        // A quarter of the runs knows no fault of a kind at all, so that the others do not hide it.
        let mut chance = |most: u64| if rng.hits(250) { 0 } else { rng.below(most + 1) };
        let (loss, bookie_crash, bookie_lost, damage) = (chance(40), chance(60), chance(25), chance(30));
        let (crash, pause, partition) = (chance(25), chance(30), chance(50));
        let (metadata_outage, reassign) = (chance(25), chance(30));
        Self {
            seed,
            bookies,
            ensemble,
            write_quorum,
            ack_quorum,
            brokers: rng.between(2, 3) as usize,
            workers: rng.between(1, 2) as usize,
            entries_per_ledger: rng.between(4, 30),
            chaos_ms: rng.between(1_000, 3_500),
            delay_ms: rng.between(0, 3),
            jitter_ms: rng.between(1, 15),
            loss,
            bookie_crash,
            bookie_lost,
            damage,
            crash,
            pause,
            partition,
            metadata_outage,
            reassign,
            change_delay_ms: if rng.hits(500) { 0 } else { 60 },
        }
    }

    pub(super) fn layout(&self) -> Layout {
        match Layout::new(self.ensemble, self.write_quorum, self.ack_quorum) {
            Ok(layout) => layout,
            Err(error) => unreachable!("shapes are ordered: {error}"),
        }
    }
}
