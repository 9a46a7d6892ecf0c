// Package api defines what a keeper says of what it keeps, and the policy that it is given: types of the
// clients (package keeper) and of the server (package keeper/server). In JSON they are what docs/wire.md
// and docs/keeper.md say. The package needs no driver.
package api
