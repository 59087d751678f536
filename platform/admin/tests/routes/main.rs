//! The whole API over a broker in this process, storage in memory: every route, what it answers and how it refuses.

mod catalogue;
mod declared;
mod refused;
mod region;
mod served;
