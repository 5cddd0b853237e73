package punctual

import (
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTheReadmeRunsInAnEmptyModule copies the files that users of the module get, requires the copy
// in an empty module, and runs the program of the README there.
func TestTheReadmeRunsInAnEmptyModule(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(readme), "```go\n")
	program, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatal("the README has no program")
	}
	module, empty := filepath.Join(t.TempDir(), "module"), t.TempDir()
	copyModule(t, module)
	if err := os.WriteFile(filepath.Join(empty, "main.go"), []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	broker := startServe(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	goCommand := func(args ...string) string {
		t.Helper()
		command := exec.CommandContext(ctx, "go", args...)
		command.Dir = empty
		command.Env = append(os.Environ(), "GOPROXY=off", "PUNCTUAL_URL="+broker.url)
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, output)
		}
		return string(output)
	}
	goCommand("mod", "init", "example.test/shop")
	goCommand("mod", "edit", "-require", "punctual.dev/go@v0.0.0", "-replace", "punctual.dev/go="+module)
	if output := goCommand("run", "."); output != "order 1 is not paid\n" {
		t.Errorf("the program of the README printed %q", output)
	}
}

// copyModule copies the module without its tests, the toolchain and the caches.
func copyModule(t *testing.T, to string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && strings.HasPrefix(entry.Name(), "."):
			return filepath.SkipDir
		case entry.IsDir():
			return os.MkdirAll(filepath.Join(to, path), 0o700)
		case path != "go.mod" && (filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go")):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, path), text, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}
