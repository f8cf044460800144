// Package outcome says what an error means for the work that met it. An error
// goes in, one of six outcomes comes out; nothing guesses it from an error's
// text. The package never retries, logs or calls anything.
package outcome
