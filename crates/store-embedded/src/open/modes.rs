//! File modes: only the user of the broker may read or write a store.
//!
//! A new data directory has mode 0700. Opening removes the rights of others from an existing one
//! and from everything in it. The process sets the modes of files that are created later, by its
//! umask: the catalog creates files of its own. A path of another user cannot be changed; it is
//! reported and does not prevent opening.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

/// What a directory grants to its owner, and to no one else.
const DIRECTORY_MODE: u32 = 0o700;
/// The bits of all rights of users other than the owner.
const OTHERS: u32 = 0o077;

/// What opening did about paths that other users could access.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TightenedModes {
    /// How many paths were made private.
    pub paths: u64,
    /// The first path that could not be made private, and why.
    pub problem: Option<String>,
}

/// Creates a directory, and its parents if they are missing, for this user only.
pub(crate) fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// Removes the rights of others from a store directory and from the entries that belong to it.
pub(crate) fn tighten(dir: &Path, entries: &[&str]) -> TightenedModes {
    let mut tightened = TightenedModes::default();
    tightened.tighten_path(dir);
    for name in entries {
        tightened.tighten_tree(&dir.join(name));
    }
    tightened
}

impl TightenedModes {
    fn tighten_tree(&mut self, path: &Path) {
        self.tighten_path(path);
        // An error is reported where the path is read.
        let Ok(entries) = fs::read_dir(path) else { return };
        for entry in entries.flatten() {
            // A link leads out of the store.
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => self.tighten_tree(&entry.path()),
                Ok(kind) if kind.is_file() => self.tighten_path(&entry.path()),
                _ => {}
            }
        }
    }

    fn tighten_path(&mut self, path: &Path) {
        let Ok(metadata) = fs::metadata(path) else { return };
        let mode = metadata.permissions().mode();
        if mode & OTHERS == 0 {
            return;
        }
        match fs::set_permissions(path, Permissions::from_mode(mode & !OTHERS)) {
            Ok(()) => self.paths += 1,
            Err(error) => {
                let problem = || format!("cannot change the mode of {}: {error}", path.display());
                self.problem.get_or_insert_with(problem);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("exists").permissions().mode() & 0o7777
    }

    #[test]
    fn a_store_is_made_private_and_other_files_beside_it_are_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let [runs, inner, file, other] =
            ["runs", "runs/inner", "runs/inner/1.run", "notes.txt"].map(|it| dir.path().join(it));
        fs::create_dir_all(&inner).expect("created");
        for path in [&file, &other] {
            fs::write(path, "x").expect("written");
        }
        for (path, wide) in
            [(dir.path(), 0o755), (&runs, 0o750), (&inner, 0o755), (&file, 0o664), (&other, 0o644)]
        {
            fs::set_permissions(path, Permissions::from_mode(wide)).expect("set");
        }
        let tightened = tighten(dir.path(), &["runs", "absent"]);
        assert_eq!(tightened, TightenedModes { paths: 4, problem: None });
        for (path, wanted) in
            [(dir.path(), 0o700), (&runs, 0o700), (&inner, 0o700), (&file, 0o600), (&other, 0o644)]
        {
            assert_eq!(mode(path), wanted, "{}", path.display());
        }
        assert_eq!(tighten(dir.path(), &["runs"]), TightenedModes::default(), "nothing is left");
    }

    #[test]
    fn a_new_directory_is_private() {
        let dir = tempfile::tempdir().expect("a directory");
        let new = dir.path().join("a/b");
        create_private_dir(&new).expect("created");
        assert_eq!((mode(&new), mode(&dir.path().join("a"))), (0o700, 0o700));
        create_private_dir(&new).expect("it may exist");
    }
}
