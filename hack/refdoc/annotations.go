package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
)

var identifier = regexp.MustCompile(`\w+`)

// Annotations returns the page of annotations, finalizers, labels and class parameters, from the constants of
// pkg/wellknown. A constant without a comment shares that of the one before.
func Annotations(root string) (string, error) {
	files, err := parseFolder(filepath.Join(root, "pkg", "wellknown"))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("# Annotations, finalizers, labels and parameters\n\n" + generated)
	constants := constantsOf(files)
	keys := map[string]string{}
	for _, c := range constants {
		keys[c.name] = c.value
	}
	for _, section := range []struct{ title, prefix string }{
		{"Annotations", "Ann"}, {"Finalizers", "Finalizer"}, {"Labels", "Label"},
		{"StorageClass parameters", "Param"}, {"Deprecated StorageClass parameters", "DeprecatedParam"},
	} {
		fmt.Fprintf(&b, "## %s\n\n| Key | Meaning |\n|---|---|\n", section.title)
		rows := annotationRows(constants, keys, section.prefix)
		if rows == "" {
			return "", fmt.Errorf("no constant begins with %s", section.prefix)
		}
		b.WriteString(rows + "\n")
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

// annotationRows returns a table row for each constant whose name begins with prefix. Names of constants in comments
// become their values, by keys.
func annotationRows(constants []constant, keys map[string]string, prefix string) string {
	var b strings.Builder
	doc := ""
	for _, c := range constants {
		if c.doc != "" {
			doc = c.doc
		}
		if strings.HasPrefix(c.name, prefix) {
			fmt.Fprintf(&b, "| `%s` | %s |\n", c.value, cell(identifier.ReplaceAllStringFunc(doc, func(word string) string {
				if key, ok := keys[word]; ok {
					return "`" + key + "`"
				}
				return word
			})))
		}
	}
	return b.String()
}
