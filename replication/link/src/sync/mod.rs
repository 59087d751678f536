//! Objects between two regions: the deciding side ([`source`]) and the answering side ([`sink`]).

pub(crate) mod sink;
pub(crate) mod source;
