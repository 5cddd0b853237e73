package punctual

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryExportedNameHasADocComment looks at functions, methods, types, and groups of constants
// and variables; a comment of a group is enough for its names.
func TestEveryExportedNameHasADocComment(t *testing.T) {
	for _, directory := range []string{".", "webhook", "punctualtest"} {
		files, err := filepath.Glob(filepath.Join(directory, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no files: %v", directory, err)
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			for _, declaration := range file.Decls {
				for _, name := range undocumented(declaration) {
					t.Errorf("%s: %s has no doc comment", set.Position(declaration.Pos()), name)
				}
			}
		}
	}
}

func undocumented(declaration ast.Decl) (names []string) {
	switch declaration := declaration.(type) {
	case *ast.FuncDecl:
		if declaration.Name.IsExported() && declaration.Doc == nil && isExportedReceiver(declaration.Recv) {
			names = append(names, declaration.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range declaration.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				if spec.Name.IsExported() && declaration.Doc == nil && spec.Doc == nil {
					names = append(names, spec.Name.Name)
				}
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					if name.IsExported() && declaration.Doc == nil && spec.Doc == nil {
						names = append(names, name.Name)
					}
				}
			}
		}
	}
	return names
}

// isExportedReceiver reports whether a method is one of an exported type. A function has no receiver.
func isExportedReceiver(receiver *ast.FieldList) bool {
	if receiver == nil {
		return true
	}
	of := receiver.List[0].Type
	if pointer, ok := of.(*ast.StarExpr); ok {
		of = pointer.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	name, ok := of.(*ast.Ident)
	return !ok || name.IsExported()
}
