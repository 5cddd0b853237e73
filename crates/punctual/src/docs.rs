//! `punctual completions` and `punctual man`: made from the same definitions as the command line.

use std::path::PathBuf;

use anyhow::Context as _;
use clap_complete::Shell;

use crate::cli::print_bytes;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual completions bash > /etc/bash_completion.d/punctual
  punctual completions zsh > \"${fpath[1]}/_punctual\"
  punctual completions fish > ~/.config/fish/completions/punctual.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell to complete for
    shell: Shell,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  punctual man | man -l -
  punctual man /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Directory to write one page per command to; it is created if it does not exist
    dir: Option<PathBuf>,
}

impl CompletionsArgs {
    pub(crate) fn run(&self, mut command: clap::Command) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, "punctual", &mut script);
        print_bytes(&script)
    }
}

impl ManArgs {
    pub(crate) fn run(&self, command: clap::Command) -> anyhow::Result<()> {
        match &self.dir {
            None => print_bytes(&page(command)?),
            Some(dir) => {
                let cannot = || format!("cannot write manual pages to {}", dir.display());
                std::fs::create_dir_all(dir).with_context(cannot)?;
                clap_mangen::generate_to(command, dir).with_context(cannot)
            }
        }
    }
}

fn page(command: clap::Command) -> anyhow::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page).context("cannot render the manual page")?;
    Ok(page)
}
