//! The allocator and its one setting.
//!
//! Role: mimalloc gives freed pages back to the system after ten milliseconds. A broker frees and takes socket buffers of
//! 256 KiB all the time: measured, a quarter of its CPU went into the system clearing the same pages again. A second keeps
//! them through a burst and still lets an idle process shrink.
//! Must never know: who allocates.
// The option is a C function of the allocator; it is called once, before any other thread runs, with a valid option.
#![allow(unsafe_code)]

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long freed pages are kept.
const PURGE_DELAY_MS: std::ffi::c_long = 1_000;
/// `mi_option_purge_delay` of the allocator's option list.
const OPTION_PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// Sets the allocator up. Call first.
pub fn set_up() {
    // SAFETY: the option exists in the linked version (checked by the test below) and any value is valid for it.
    unsafe { libmimalloc_sys::mi_option_set(OPTION_PURGE_DELAY, PURGE_DELAY_MS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_the_purge_delay() {
        // SAFETY: as in `set_up`; reading an option has no effect.
        let get = || unsafe { libmimalloc_sys::mi_option_get(OPTION_PURGE_DELAY) };
        assert_eq!(get(), 10, "the allocator's documented default of the purge delay");
        set_up();
        assert_eq!(get(), PURGE_DELAY_MS);
    }
}
