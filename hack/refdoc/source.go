package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// parseFolder returns the syntax of the Go files in a folder, tests excluded, in the order of their names.
func parseFolder(folder string) ([]*ast.File, error) {
	names, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// foldersBelow returns folder and all folders in it.
func foldersBelow(folder string) ([]string, error) {
	var folders []string
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			folders = append(folders, path)
		}
		return err
	})
	return folders, err
}

// constant is a constant of a package whose value is a string.
type constant struct{ name, value, doc string }

// constantsOf returns the string constants of a package in the order of the source. Sums of constants that stand
// before are resolved.
func constantsOf(files []*ast.File) []constant {
	var all []constant
	values := map[string]string{}
	for _, file := range files {
		for _, decl := range file.Decls {
			if group, ok := decl.(*ast.GenDecl); ok && group.Tok == token.CONST {
				all = append(all, constantsIn(group, values)...)
			}
		}
	}
	return all
}

// constantsIn returns the string constants of one declaration and adds their values to known.
func constantsIn(group *ast.GenDecl, known map[string]string) []constant {
	var all []constant
	for _, spec := range group.Specs {
		value := spec.(*ast.ValueSpec)
		doc := value.Doc
		if doc == nil && !group.Lparen.IsValid() {
			doc = group.Doc
		}
		for i, expr := range value.Values {
			if text, ok := stringOf(expr, known); ok {
				name := value.Names[i].Name
				known[name] = text
				all = append(all, constant{name, text, strings.Join(strings.Fields(doc.Text()), " ")})
			}
		}
	}
	return all
}

// stringOf returns the value of an expression of string literals and known constants.
func stringOf(expr ast.Expr, known map[string]string) (string, bool) {
	switch e := expr.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.Ident:
		text, ok := known[e.Name]
		return text, ok
	case *ast.BinaryExpr:
		left, leftOK := stringOf(e.X, known)
		right, rightOK := stringOf(e.Y, known)
		return left + right, leftOK && rightOK && e.Op == token.ADD
	}
	return "", false
}

// cell makes a text safe in a table's cell.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`, "\n", " ").Replace(text)
}
