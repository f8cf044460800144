package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// The commands of the program. A command may stand before, between or after the flags.
const (
	runCommand     = "run" // the default: may be left out
	explainCommand = "explain"
	auditCommand   = "audit"
	versionCommand = "version"
	helpCommand    = "help"

	operationsCommand = "operations"
)

var commands = []string{runCommand, explainCommand, operationsCommand, auditCommand, versionCommand, helpCommand}

// words are the arguments that are neither a flag nor a flag's value.
type words struct {
	// all are the words in their order, without empty ones, as templates of charts make them.
	all []string
	// strayBools maps a boolean flag to the "true" or "false" that follows it without "=". The flag does not take
	// it as its value, and neither does the program that this one replaces, so that it is only warned about.
	strayBools map[string]string
}

// parseWords parses args into the flags of all, and returns what stands beside them.
func parseWords(all *pflag.FlagSet, args []string) (words, error) {
	w := words{strayBools: map[string]string{}}
	all.SetInterspersed(false) // Parse stops at each word
	for len(args) > 0 {
		if err := all.Parse(args); err != nil {
			return w, err
		}
		rest := all.Args()
		if all.ArgsLenAtDash() >= 0 { // after "--" all are words
			w.all = append(w.all, slices.DeleteFunc(slices.Clone(rest), isEmpty)...)
			return w, nil
		}
		if len(rest) == 0 {
			return w, nil
		}
		word, before := rest[0], ""
		if at := len(args) - len(rest); at > 0 {
			before = args[at-1]
		}
		if flag := boolFlag(all, before); flag != "" && (word == "true" || word == "false") {
			w.strayBools[flag] = word
		} else if !isEmpty(word) {
			w.all = append(w.all, word)
		}
		args = rest[1:]
	}
	return w, nil
}

func isEmpty(word string) bool { return strings.TrimSpace(word) == "" }

// boolFlag returns the name of the boolean flag that arg is, without a value of its own; "" when arg is none.
func boolFlag(all *pflag.FlagSet, arg string) string {
	name, ok := strings.CutPrefix(arg, "--")
	if !ok || name == "" {
		return ""
	}
	if f := all.Lookup(name); f != nil && f.NoOptDefVal != "" {
		return name
	}
	return ""
}

// commandOf returns the command that args name: the first word that is not empty, or run when there is none. A flag
// that cannot be parsed ends the search; the command reports it.
func commandOf(args []string) (string, error) {
	o := newExplainOptions() // its flags are those of all commands; see TestExplainHasTheFlagsOfAllCommands
	w, _ := parseWords(newFlagSet(o.allGroups()), args)
	if len(w.all) == 0 {
		return runCommand, nil
	}
	if command := w.all[0]; slices.Contains(commands, command) {
		return command, nil
	}
	return "", unknownCommand(w.all[0])
}

// unknownCommand says what to do about a word that is no command.
func unknownCommand(word string) error {
	best, bestDistance := "", 1+len(word)/3
	for _, command := range commands {
		if d := distance(word, command); d < bestDistance {
			best, bestDistance = command, d
		}
	}
	if best != "" {
		return fmt.Errorf("unknown command %q, did you mean %s? The commands are %s", word, best, strings.Join(commands, ", "))
	}
	return fmt.Errorf("unknown command %q: delete it, or write it as the value of its flag, as in --flag=%s; the commands are %s", word, word, strings.Join(commands, ", "))
}

// rest returns the words after the command, which is the first one if it is there at all.
func (w words) rest(command string) []string {
	if len(w.all) > 0 && w.all[0] == command {
		return w.all[1:]
	}
	return w.all
}
