//! The public side of an owner: the commands that callers send, the replies and errors that come
//! back, and the handle that carries both. How commands are decided is in `commands`.

pub(crate) mod call;
pub(crate) mod command;
pub(crate) mod error;
pub(crate) mod owner_handle;
pub(crate) mod reply;
