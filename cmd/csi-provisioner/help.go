package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/pflag"
)

const (
	helpIndent = "        "
	helpWidth  = 100
)

// writeHelp prints all flags in their groups, each with its kind of value and its default.
func writeHelp(w io.Writer) error {
	var b strings.Builder
	b.WriteString("csi-provisioner creates and deletes the volumes of a CSI driver for PersistentVolumeClaims.\n\n" +
		"Usage: csi-provisioner [run] [flags]\n" +
		"       csi-provisioner explain [flags] CLAIM    what it would do about a claim, and why; see explain --help\n" +
		"       csi-provisioner audit [flags]            compares the driver's volumes with the PersistentVolumes; see audit --help\n" +
		"       csi-provisioner operations [flags]       lists the operations in flight, and ends one by hand; see operations --help\n" +
		"       csi-provisioner version | help\n")
	for _, g := range NewOptions().groups() {
		b.WriteString("\n" + g.title + ":\n")
		g.flags.VisitAll(func(f *pflag.Flag) { b.WriteString(flagHelp(f)) })
	}
	b.WriteString("\nOther:\n  -h, --help\n" + helpIndent + "Print this and exit.\n")
	_, err := io.WriteString(w, b.String())
	if err != nil {
		return fmt.Errorf("print the help: %w", err)
	}
	return nil
}

func flagHelp(f *pflag.Flag) string {
	kind, usage := pflag.UnquoteUsage(f)
	head := "  --" + f.Name
	if f.Shorthand != "" {
		head = "  -" + f.Shorthand + ", --" + f.Name
	}
	def := f.DefValue
	switch f.Value.Type() {
	case "bool":
		kind = ""
	case "boolfunc":
		kind, def = "", ""
	case "int", "uint", "float32", "float64", "Level":
		kind = "number"
	case "string":
		def = fmt.Sprintf("%q", def)
	case "stringSlice":
		def = strings.Trim(def, "[]")
	}
	if kind != "" {
		head += " " + kind
	}
	if def != "" && def != `""` {
		head += " (default " + def + ")"
	}
	var b strings.Builder
	b.WriteString(head + "\n")
	for line := range strings.SplitSeq(usage, "\n") {
		for _, part := range wrap(line, helpWidth-len(helpIndent)) {
			b.WriteString(helpIndent + part + "\n")
		}
	}
	return b.String()
}

// wrap breaks text at blanks into lines of at most width bytes, where words allow.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) > width:
			lines = append(lines, line)
			line = word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}
