//! The suite of every metadata store, on one region and on many.

mod support;

mod one_region {
    use crate::support;
    use meridian_mini_tikv::TikvOptions;

    meridian_metadata::conformance_tests!(|| support::store_on(&TikvOptions::default()));
}

mod many_regions {
    use crate::support;

    meridian_metadata::conformance_tests!(|| support::store_on(&support::many_regions()));
}
