//! Alarms: rules of a namespace that report when something goes wrong and when it is over.
//!
//! An alarm is stored as a paused task of an internal namespace, in the first partition (`stored`),
//! and found by lists of names (`name_list`).
//! The broker that owns this partition evaluates all alarms twice a second (`evaluate`): it asks
//! all brokers what they have measured (`measure`, `windows`), decides with
//! [`punctual_core::AlarmRule::evaluate`], stores the new status, and then schedules the notice
//! (`notice`). The notice is a task like any other, so it is retried and survives every restart.
//!
//! A status is stored with its notice as pending, under the condition that nothing else has changed
//! it. The notice is scheduled with a receipt, and only then is it no longer pending. So a broker
//! that dies in between, or two brokers that both believe to own the partition, send one notice.

pub(crate) mod evaluate;
pub(crate) mod measure;
mod name_list;
pub(crate) mod notice;
pub(crate) mod rule_form;
pub(crate) mod stored;
pub(crate) mod value_form;
pub(crate) mod windows;
