// Runs pytest in the CPython that npm's pyodide ships: `make test-wasm` installs it, and says which.
//
//     node wasm.mjs FOLDER_OF_PYODIDE SITE_PACKAGES... -- ARGUMENTS_OF_PYTEST
import { pathToFileURL } from "node:url";
import path from "node:path";

const [home, ...rest] = process.argv.slice(2);
const sites = rest.splice(0, rest.indexOf("--")).map((each) => path.resolve(each));
const { loadPyodide } = await import(pathToFileURL(path.resolve(home, "node_modules/pyodide/pyodide.mjs")));
const python = await loadPyodide({ env: { HOME: "/tmp", PYTHONDONTWRITEBYTECODE: "1" } });
for (const folder of [process.cwd(), ...sites]) {
  python.FS.mkdirTree(folder);
  python.FS.mount(python.FS.filesystems.NODEFS, { root: folder }, folder);
}
python.globals.set("SITES", python.toPy(sites));
python.globals.set("ARGUMENTS", python.toPy(rest.slice(1)));
process.exitCode = python.runPython(`
import os, sys
os.chdir(${JSON.stringify(process.cwd())})
sys.path[:0] = [os.getcwd(), os.path.join(os.getcwd(), "tests", "programs"), *SITES]
import wasm
wasm.main(ARGUMENTS)
`);
