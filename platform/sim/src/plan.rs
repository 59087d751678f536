//! What a seed means: how many regions and clients, what they do, what goes wrong and how often.
//!
//! Invariants: D1.

/// Random numbers of a run (splitmix64).
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xd129_42e6_94c1_9aed).wrapping_add(0x5851_f42d_4c95_7f2d))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound.max(1)
    }

    /// From `low` to `high`, both possible.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    pub(crate) fn hits(&mut self, permille: u64) -> bool {
        permille > 0 && self.below(1000) < permille
    }
}

/// Chances of faults, in thousandths per look ([`LOOK_MS`]), and everything else that a seed decides.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Plan {
    pub seed: u64,
    pub regions: usize,
    pub clients: usize,
    pub subscriptions: usize,
    /// Messages that each client writes.
    pub messages: u64,
    /// Producers are deduplicated in their region.
    pub dedup: bool,
    /// Producers are the same in all regions.
    pub global: bool,
    /// One region is active at a time.
    pub reign: bool,
    /// One way between two regions, and how much it varies.
    pub delay_ms: u64,
    pub jitter_ms: u64,
    /// Until then things go wrong.
    pub faults_until_ms: u64,
    pub crash: u64,
    pub partition: u64,
    pub cut: u64,
    pub refuse: u64,
    pub fail_append: u64,
    pub fence: u64,
    pub fail_read: u64,
    pub client_cut: u64,
    pub client_move: u64,
    pub reader_move: u64,
    pub seek: u64,
    pub retention: u64,
    pub switch: u64,
    pub force: u64,
    pub ttl_ms: Option<u64>,
}

/// Pause between two looks at chance.
pub(crate) const LOOK_MS: u64 = 25;

impl Plan {
    /// What a seed means.
    pub fn of(seed: u64) -> Self {
        let rng = &mut Rng::new(seed);
        // Most runs have a few kinds of faults, some have all: a fault alone is seen more clearly.
        let share = [250, 500, 1000][rng.below(3) as usize];
        let often = |rng: &mut Rng, most: u64| if rng.hits(share) { rng.between(1, most) } else { 0 };
        let reign = rng.hits(450);
        let global = rng.hits(350);
        Self {
            seed,
            regions: if rng.hits(500) { 3 } else { 2 },
            clients: rng.between(1, 3) as usize,
            subscriptions: rng.between(1, 2) as usize,
            messages: rng.between(15, 45),
            dedup: global || rng.hits(400),
            global,
            reign,
            delay_ms: [0, 2, 10, 40, 80][rng.below(5) as usize],
            jitter_ms: rng.below(10),
            faults_until_ms: rng.between(1000, 2500),
            crash: often(rng, 20),
            partition: often(rng, 25),
            cut: often(rng, 60),
            refuse: often(rng, 60),
            fail_append: often(rng, 40),
            fence: often(rng, 20),
            fail_read: often(rng, 100),
            client_cut: often(rng, 60),
            client_move: often(rng, 40),
            reader_move: often(rng, 50),
            seek: often(rng, 25),
            retention: often(rng, 30),
            switch: if reign { rng.between(10, 60) } else { 0 },
            force: if reign { often(rng, 20) } else { 0 },
            ttl_ms: if rng.hits(250) { Some(rng.between(100, 900)) } else { None },
        }
    }
}
