//! Every kind of decision, alone and together with others under a virtual clock.

mod elastic;
mod engine;
mod lifecycle;
mod membership;
mod permissions;
mod recovery;
mod schedule;
mod search;
mod simulation;
