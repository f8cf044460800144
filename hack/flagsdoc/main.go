package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	check := flag.Bool("check", false, "change nothing, exit 1 if the page is not up to date")
	root := flag.String("root", ".", "top of the repository")
	flag.Parse()
	if err := run(*root, *check); err != nil {
		fmt.Fprintln(os.Stderr, "flagsdoc:", err)
		os.Exit(1)
	}
}

// run brings the page up to date, or tells by an error that it is not.
func run(root string, check bool) error {
	page := filepath.Join(root, "docs", "reference", "flags.md")
	help, err := os.ReadFile(filepath.Join(root, "cmd", "csi-provisioner", "testdata", "help.golden"))
	if err != nil {
		return err
	}
	before, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	table, err := Table(string(help))
	if err != nil {
		return fmt.Errorf("read the help text: %w", err)
	}
	after, err := Insert(string(before), table)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	switch {
	case after == string(before):
		return nil
	case check:
		return fmt.Errorf("the flags table of %s is not up to date: run `make generate`", page)
	default:
		return os.WriteFile(page, []byte(after), 0o644)
	}
}
