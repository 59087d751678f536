//! Where the client finds bookies.

use meridian_bookie_api::Bookie;
use meridian_topology::Location;
use meridian_types::BookieId;
use std::sync::Arc;

/// The bookies that there are.
pub trait BookieDirectory: Send + Sync {
    /// Bookies that take new entries now.
    fn writable(&self) -> Vec<BookieId>;

    /// Bookies that are registered now, also read-only ones. `None` = not known (no complete listing yet, or the
    /// metadata store is away): absence in it proves nothing.
    fn registered(&self) -> Option<Vec<BookieId>> {
        Some(self.writable())
    }

    /// A bookie by id, also a read-only one; `None` = not known or gone.
    fn get(&self, id: &BookieId) -> Option<Arc<dyn Bookie>>;

    /// Where a bookie stands, as far as it is known.
    fn location(&self, _id: &BookieId) -> Location {
        Location::default()
    }
}

/// A fixed set of bookies, all of them taken as writable.
pub struct StaticBookies {
    bookies: Vec<Arc<dyn Bookie>>,
}

impl StaticBookies {
    /// The given bookies.
    pub fn new(bookies: Vec<Arc<dyn Bookie>>) -> Self {
        Self { bookies }
    }
}

impl BookieDirectory for StaticBookies {
    fn writable(&self) -> Vec<BookieId> {
        self.bookies.iter().map(|b| b.id().clone()).collect()
    }

    fn get(&self, id: &BookieId) -> Option<Arc<dyn Bookie>> {
        self.bookies.iter().find(|b| b.id() == id).cloned()
    }
}
