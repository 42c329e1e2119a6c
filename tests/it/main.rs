//! All integration tests, in one binary so that one link serves all.

mod simulation;
