// Warnings of the compiler, accessibility among them, fail `npm run check`.
export default { compilerOptions: { runes: true } };
