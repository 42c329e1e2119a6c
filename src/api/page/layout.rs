//! What all pages have in common: head, navigation, the forms behind the buttons, and the foot.

use std::sync::Arc;

use maud::{DOCTYPE, Markup, html};

use super::assets;
use super::times::Clock;
use crate::api::roles::Role;
use cronkeeper_core::term::NodeName;

/// What a visitor may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Reads the outline. `can_sign_in` if the node has a token.
    Stranger { can_sign_in: bool },
    /// Sees everything, and may do what the role says. `form_key` proves that a form comes from this page.
    Known { form_key: String, role: Role, signed_in: SignedIn },
}

/// How a visitor became known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SignedIn {
    /// Not on the page: on the socket.
    No,
    /// With the token of this name, which each request carries.
    Token(Arc<str>),
    /// The same, on the page. Such a visitor can sign out.
    Session(Arc<str>),
}

impl Standing {
    pub fn may_act(&self) -> bool {
        matches!(self, Self::Known { role, .. } if *role >= Role::Operate)
    }
}

/// The page around the content.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    /// What is most important on the page.
    pub title: &'a str,
    pub node: &'a NodeName,
    pub standing: &'a Standing,
    pub clock: &'a Clock,
    /// How the last action ended.
    pub done: Option<&'static str>,
}

/// The forms behind the buttons, each with the fields that all requests need. The buttons and fields in the content name
/// their form. A field has a form with no button but its own, so that Enter presses that one.
const FORMS: [&str; 4] = ["act", "act-run", "act-pause", "act-drain"];

impl Frame<'_> {
    pub fn markup(&self, main: &Markup) -> Markup {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) " – cronkeeper on " (self.node) }
                    link rel="stylesheet" href=(assets::STYLE.path());
                    link rel="icon" href=(assets::ICON.path()) type="image/svg+xml";
                    script src=(assets::SCRIPT.path()) defer {}
                    noscript { meta http-equiv="refresh" content="15"; }
                }
                body {
                    a.skip href="#main" { "Skip to the content" }
                    (self.header())
                    // The script shows it, and greys the rest, when this node does not answer any more.
                    p #stale.problems role="alert" data-node=(self.node) hidden {}
                    // The script updates relative times from this moment on.
                    main #main data-now=(self.clock.now.as_millisecond()) {
                        @if let Some(done) = self.done { p.done role="status" { (done) } }
                        (main)
                    }
                    footer {
                        p #live role="status" { "This page shows the moment at which it was loaded." }
                        p { "cronkeeper " (env!("CARGO_PKG_VERSION")) ", as " (self.node) " sees it. "
                            a href="/v1" { "The API" } }
                    }
                }
            }
        }
    }

    fn header(&self) -> Markup {
        html! {
            header {
                a.brand href="/" { "cronkeeper" }
                nav aria-label="Pages" { a href="/" { "Overview" } a href="/history" { "History" } }
                span.tools {
                    a.zone href="/zone" title="Choose another time zone" {
                        span.long { "Times in " } span.name { (self.clock.zone.name()) }
                    }
                    @match self.standing {
                        Standing::Stranger { can_sign_in: true } => a.button href="/session" { "Sign in" },
                        Standing::Stranger { can_sign_in: false } => span.fact { "read-only" },
                        Standing::Known { form_key, role, signed_in } => {
                            @for form in FORMS {
                                form id=(form) method="post" {
                                    input type="hidden" name="form_key" value=(form_key);
                                    input type="hidden" name="uuid" value=(uuid::Uuid::new_v4());
                                }
                            }
                            @if let SignedIn::Token(name) | SignedIn::Session(name) = signed_in {
                                span #who.fact title="Who is signed in, and the role" { (name) ", " (role) }
                            }
                            @if let SignedIn::Session(_) = signed_in {
                                button #sign-out form="act" formaction="/session/end" { "Sign out" }
                            }
                        }
                    }
                }
            }
        }
    }
}
